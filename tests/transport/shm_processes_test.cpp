// SPDX-License-Identifier: Apache-2.0
// The shm transport between processes: killed owners, namespaces, users, and access control.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "support/forked.hpp"
#include "support/open_descriptors.hpp"
#include "transport/shm_peers.hpp"

BOOST_AUTO_TEST_SUITE(shm_processes)

using namespace shardwire;
using namespace shardwire::test;
using namespace shardwire::transport;

namespace {

constexpr ByteCount mebibyte = ByteCount{1} << 20;
constexpr uid_t nobody = 65534;

std::string names_in_shared_memory() {
  std::string names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.find("shardwire") != std::string::npos) names += name + " ";
  }
  return names;
}

/// Changes the user permanently, and stays dumpable.
void become(uid_t user) {
  if (::setresgid(user, user, user) != 0 || ::setresuid(user, user, user) != 0) throw std::runtime_error("setresuid");
  ::prctl(PR_SET_DUMPABLE, 1);
}

boost::test_tools::assertion_result as_root(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(::geteuid() == 0);
  if (!result) result.message() << "only root can become another user";
  return result;
}

boost::test_tools::assertion_result with_namespaces(boost::unit_test::test_unit_id /*case*/) {
  Forked attempt([](int) { require(::unshare(CLONE_NEWNS | CLONE_NEWPID) == 0, "unshare"); });
  boost::test_tools::assertion_result result(attempt.reap() == 0);
  if (!result) result.message() << "namespaces of its own cannot be made here";
  return result;
}

void install_filter(std::span<sock_filter> program) {
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  require(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0,
          "no seccomp filter");
}

void forbid_attach_by_filter() {
  std::array<sock_filter, 4> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  install_filter(program);
}

}  // namespace

BOOST_AUTO_TEST_CASE(two_processes_read_arenas_and_adopted_memory_until_it_is_withdrawn) {
  const Deadline deadline(120s);
  Forked owner(serve);
  Reader reader(owner.socket());
  BOOST_TEST(reader.endpoint->path({}).why_not.empty());
  const auto arena = reader.endpoint->import_region(reader.arena_key.key(), region_bytes);
  const auto adopted = reader.endpoint->import_region(reader.adopted_key.key(), adopted_bytes);
  Bytes all(region_bytes);
  BOOST_TEST(!reader.read_all(*arena, all));
  BOOST_TEST(same_bytes(all, pattern(region_bytes, 5)));
  Bytes into(adopted_bytes);
  BOOST_TEST(!reader.read_all(*adopted, into));
  BOOST_TEST(same_bytes(into, pattern(adopted_bytes, 6)));
  send_order(owner.socket(), "withdraw");
  Bytes late(adopted_bytes);
  const Outcome outcome = reader.read_all(*adopted, late);
  BOOST_REQUIRE(outcome.has_value());
  BOOST_TEST((outcome->code == ErrorCode::withdrawn), outcome->message);
  BOOST_TEST((late == Bytes(adopted_bytes)));
}

BOOST_AUTO_TEST_CASE(adopted_memory_of_a_dead_process_fails_and_its_arena_stays) {
  const Deadline deadline(120s);
  Forked owner(serve);
  Reader reader(owner.socket());
  const auto arena = reader.endpoint->import_region(reader.arena_key.key(), region_bytes);
  const auto adopted = reader.endpoint->import_region(reader.adopted_key.key(), adopted_bytes);
  owner.kill();
  owner.reap();
  Bytes into(adopted_bytes);
  const Outcome outcome = reader.read_all(*adopted, into);
  BOOST_REQUIRE(outcome.has_value());
  BOOST_TEST((outcome->code == ErrorCode::peer_lost), outcome->message);
  BOOST_TEST(run_until([&] { reader.fabric->progress(); }, [&] { return reader.endpoint->failed(); }, promptly));
  BOOST_TEST(same_bytes(arena->mapped().span(), pattern(region_bytes, 5)));
}

// A child that a peer has forked keeps none of the peer's connections open.
BOOST_AUTO_TEST_CASE(a_peer_has_gone_although_its_child_lives_on) {
  const Deadline deadline(120s);
  Forked owner([](int socket) {
    const auto fabric = open_shm();
    write_frame(socket, fabric->address());
    auto sockets = connect_sockets(socket, *fabric);
    const Bytes address = read_frame(socket);
    const auto endpoint = fabric->connect({.address = address, .sockets = std::move(sockets)});
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(socket);
      ::alarm(120);
      while (true) ::pause();
    }
    write_frame(socket, std::as_bytes(std::span(&child, 1)));
    read_frame(socket);
  });
  const auto fabric = open_shm();
  const Bytes address = read_frame(owner.socket());
  auto sockets = accept_sockets(owner.socket(), *fabric);
  const auto endpoint = fabric->connect({.address = address, .sockets = std::move(sockets)});
  write_frame(owner.socket(), fabric->address());
  pid_t child = 0;
  const Bytes told = read_frame(owner.socket());
  BOOST_REQUIRE(told.size() == sizeof child);
  std::memcpy(&child, told.data(), sizeof child);
  owner.kill();
  owner.reap();
  BOOST_TEST(run_until([&] { fabric->progress(); }, [&] { return endpoint->failed(); }, promptly));
  BOOST_TEST(::kill(child, SIGKILL) == 0);
}

// Memory without a name is gone with the last descriptor of it.
BOOST_DATA_TEST_CASE(an_owner_that_is_killed_leaves_nothing_behind, boost::unit_test::data::xrange(8), stage) {
  const Deadline deadline(120s);
  constexpr ByteCount total = 16 * mebibyte;
  const std::size_t before = open_descriptors();
  {
    Forked owner([](int socket) {
      const auto fabric = open_shm();
      write_frame(socket, fabric->address());
      std::vector<std::unique_ptr<Region>> regions;
      for (ByteCount done = 0; done < total; done += total / 4) {
        const auto& region = regions.emplace_back(fabric->allocate(total / 4));
        std::memset(region->memory().address, 1, region->memory().bytes);
        send_key(socket, *region);
      }
      read_frame(socket);
    });
    read_frame(owner.socket());
    std::vector<ReceivedKey> keys;
    for (int i = 0; i < stage / 2; ++i) keys.push_back(read_key(owner.socket()));
    if (stage % 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5 * stage));
    owner.kill();
    owner.reap();
  }  // closes the received descriptors and those still in transit
  BOOST_TEST(open_descriptors() == before);
  BOOST_TEST(names_in_shared_memory().empty());
}

BOOST_AUTO_TEST_CASE(processes_of_other_namespaces_are_reached, *boost::unit_test::precondition(with_namespaces)) {
  const Deadline deadline(120s);
  Forked outer([](int socket) {
    require(::unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC) == 0, "unshare");
    require(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "mount /");
    require(::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") == 0, "mount /dev/shm");
    Forked owner([&](int inner) {  // the first process of the new PID namespace
      require(::getpid() == 1, "not the first");
      ::close(inner);
      serve(socket);
    });
    ::close(socket);  // the owner's from here on
    owner.reap();
  });
  Reader reader(outer.socket());
  require_all(reader, true);  // later processes know its number
  Forked inside([&](int socket) {
    require(::unshare(CLONE_NEWPID) == 0, "unshare");
    Forked first([&](int inner) {
      ::close(inner);
      Reader stranger(socket);
      require(stranger.endpoint->path({}).why_not.detail.find("PID namespace") != std::string::npos, "wrong reason");
      require_all(stranger, false);
      write_frame(socket, text("seen"));
    });
    const int status = first.reap();
    require(status == 0, "the reader in the namespace failed");
  });
  // This process is the owner, and does the work of serve() itself.
  const auto region = reader.fabric->allocate(region_bytes);
  std::ranges::copy(pattern(region_bytes, 5), region->memory().span().begin());
  write_frame(inside.socket(), reader.fabric->address());
  send_key(inside.socket(), *region);
  send_key(inside.socket(), *region);
  auto sockets = connect_sockets(inside.socket(), *reader.fabric);
  const Bytes address = read_frame(inside.socket());
  const auto back = reader.fabric->connect({.address = address, .sockets = std::move(sockets)});
  BOOST_TEST((read_frame(inside.socket()) == text("seen")));
  BOOST_TEST(inside.reap() == 0);
}

BOOST_AUTO_TEST_CASE(the_size_of_dev_shm_does_not_matter, *boost::unit_test::precondition(with_namespaces)) {
  const Deadline deadline(120s);
  Forked owner([](int) {
    require(::unshare(CLONE_NEWNS) == 0, "unshare");
    require(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "mount /");
    require(::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64m") == 0, "mount /dev/shm");
    const auto fabric = open_shm();
    const auto region = fabric->allocate(150 * mebibyte);
    std::memset(region->memory().address, 1, region->memory().bytes);
    require(names_in_shared_memory().empty(), "something in /dev/shm");
  });
  BOOST_TEST(owner.reap() == 0);
}

BOOST_AUTO_TEST_CASE(a_peer_that_is_not_dumpable_is_mapped_and_gives_the_reason,
                     *boost::unit_test::precondition(as_root)) {
  const Deadline deadline(120s);
  for (const bool dumpable : {true, false}) {
    Forked reading([&](int outer) {
      become(nobody);
      Forked owner([&](int socket) {
        ::prctl(PR_SET_DUMPABLE, dumpable ? 1 : 0);
        serve(socket);
      });
      Reader reader(owner.socket());
      if (!dumpable) {
        const support::Fallback why_not = reader.endpoint->path({}).why_not;
        require(why_not.detail.find("not dumpable") != std::string::npos, "wrong reason: " + why_not.detail);
        require(why_not.reason == FallbackReason::undumpable, "another enumerator");
      }
      require_all(reader, dumpable);
      write_frame(outer, text("seen"));
    });
    BOOST_TEST((read_frame(reading.socket()) == text("seen")));
    BOOST_TEST(reading.reap() == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_peer_that_forbids_attach_later_fails_reads, *boost::unit_test::precondition(as_root)) {
  const Deadline deadline(120s);
  Forked reading([&](int) {
    become(nobody);
    Forked owner(serve);
    Reader reader(owner.socket());
    const auto adopted = reader.endpoint->import_region(reader.adopted_key.key(), adopted_bytes);
    send_order(owner.socket(), "undumpable");
    Bytes into(adopted_bytes);
    const Outcome outcome = reader.read_all(*adopted, into);
    require(outcome && outcome->code == ErrorCode::transport_failed, "no fault");
    require(into == Bytes(adopted_bytes), "bytes were read");
  });
  BOOST_TEST(reading.reap() == 0);
}

BOOST_AUTO_TEST_CASE(a_peer_of_another_user_is_mapped_and_gives_the_reason, *boost::unit_test::precondition(as_root)) {
  const Deadline deadline(120s);
  Forked reading([&](int) {
    Forked owner([&](int socket) {
      become(nobody - 1);
      serve(socket);
    });
    become(nobody);
    Reader reader(owner.socket());
    const support::Fallback why_not = reader.endpoint->path({}).why_not;
    require(why_not.detail.find("belongs to user 65533") != std::string::npos, "wrong reason: " + why_not.detail);
    require(why_not.reason == FallbackReason::other_user, "another enumerator");
    require_all(reader, false);
  });
  BOOST_TEST(reading.reap() == 0);
}

BOOST_AUTO_TEST_CASE(a_filter_that_forbids_attach_is_named) {
  const Deadline deadline(120s);
  Forked reading([&](int) {
    Forked owner(serve);
    forbid_attach_by_filter();
    Reader reader(owner.socket());
    const support::Fallback why_not = reader.endpoint->path({}).why_not;
    require(why_not.detail.find("seccomp") != std::string::npos, "wrong reason: " + why_not.detail);
    require(why_not.reason == FallbackReason::seccomp, "another enumerator");
    require_all(reader, false);
  });
  BOOST_TEST(reading.reap() == 0);
}

// A filter ends the process if it calls prctl(PR_SET_PTRACER).
BOOST_AUTO_TEST_CASE(nobody_is_let_attach_unless_the_variable_says_so) {
  const Deadline deadline(120s);
  for (const bool asked : {false, true}) {
    Forked process([&](int) {
      ::unsetenv("SHARDWIRE_ALLOW_ATTACH");
      if (asked) ::setenv("SHARDWIRE_ALLOW_ATTACH", "1", 1);
      std::array<sock_filter, 6> program{{
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_PTRACER, 0, 1),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      }};
      install_filter(program);
      require(open_shm() != nullptr, "no fabric");
    });
    BOOST_TEST(WIFSIGNALED(process.reap()) == asked);
  }
}

BOOST_AUTO_TEST_SUITE_END()
