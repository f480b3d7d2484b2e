// SPDX-License-Identifier: Apache-2.0
// Effects of the ucx transport on its process and host.
#include <sys/resource.h>
#include <sys/wait.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "conformance/pair.hpp"
#include "support/child.hpp"
#include "support/descriptor_limit.hpp"
#include "support/forked.hpp"
#include "support/open_descriptors.hpp"
#include "transport/rdma.hpp"

BOOST_AUTO_TEST_SUITE(ucx)

using namespace shardwire;
using namespace shardwire::test;

namespace {

std::unique_ptr<transport::Fabric> open_over(const char* transports) {
  ::setenv("UCX_TLS", transports, 1);
  return transport::choose("ucx").open();
}

/// Number of this process's ports that accept connections.
int listening_ports() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor that reads the folder is closed by now
    const std::string target = std::filesystem::read_symlink(entry, gone);
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  int count = 0;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::vector<std::string> field{std::istream_iterator<std::string>(words), {}};
      if (field.size() > 9 && field[3] == "0A" && own.contains(field[9])) ++count;
    }
  }
  return count;
}

}  // namespace

// A UCX worker that listens on TCP accepts data from any sender.
BOOST_AUTO_TEST_CASE(nothing_listens_for_a_fabric_that_is_kept_off_tcp) {
  const Deadline deadline(120s);
  Forked child([](int) {
    const int before = listening_ports();
    const auto in_memory = open_over("posix,self");
    if (listening_ports() != before) throw std::runtime_error("a fabric over shared memory listens on a port");
    const auto over_tcp = open_over("tcp");
    if (listening_ports() == before) throw std::runtime_error("nothing was seen to listen, not over TCP either");
  });
  BOOST_TEST(child.reap() == 0);
}

BOOST_AUTO_TEST_CASE(a_peer_that_is_killed_is_noticed_while_a_child_of_it_lives_on) {
  const Deadline deadline(120s);
  const Forked peer([](int socket) {
    const auto fabric = open_over("posix,self");
    const Forked child([](int) { ::pause(); });  // for example a data loader, with copies of all descriptors
    write_frame(socket, fabric->address());
    const pid_t number = child.pid();
    write_frame(socket, std::as_bytes(std::span(&number, 1)));
    while (true) fabric->progress();
  });
  const Bytes address = read_frame(peer.socket());
  const Bytes told = read_frame(peer.socket());
  pid_t child = 0;
  std::memcpy(&child, told.data(), sizeof child);
  Forked survivor([&](int) {
    const auto fabric = open_over("posix,self");
    const auto endpoint = fabric->connect({.address = address, .same_host = true});
    const auto lost = [&] { return endpoint->failed(); };
    if (run_until([&] { fabric->progress(); }, lost, 200ms)) throw std::runtime_error("lost too early");
    peer.kill();
    const bool noticed = run_until([&] { fabric->progress(); }, lost, promptly);
    if (::kill(child, SIGKILL) != 0) throw std::runtime_error("the child was gone as well");
    if (!noticed) throw std::runtime_error("the death was not noticed");
  });
  BOOST_TEST(survivor.reap() == 0);
}

// Software reads and writes with a forged key reach a UCX context in its own process, but neither registered nor other
// memory of a fabric.
BOOST_DATA_TEST_CASE(nobody_reads_or_writes_memory_by_asking_the_processor,
                     boost::unit_test::data::make({"of its own", "of a fabric"}), whose) {
  const Deadline deadline(120s);
  BOOST_REQUIRE(std::getenv("TEST_STRANGER") != nullptr);
  const bool of_a_fabric = std::string_view(whose) == "of a fabric";
  const bool hardware = !transport::active_ports().empty();
  if (!hardware) ::setenv("UCX_TLS", "tcp", 1);
  Forked victim([](int socket) {
    const auto fabric = transport::choose("ucx").open();
    const std::uint64_t secret = 0x5ec2e75ec2e7;
    const auto memory = std::make_unique<std::uint64_t>(secret);
    write_frame(socket, fabric->address());
    const auto where = reinterpret_cast<std::uint64_t>(memory.get());
    write_frame(socket, std::as_bytes(std::span(&where, 1)));
    while (*static_cast<volatile std::uint64_t*>(memory.get()) == secret) fabric->progress();
  });
  const Bytes address = read_frame(victim.socket());
  const Bytes where = read_frame(victim.socket());
  // After the transport's header: magic, number of the fabric, two lengths.
  std::uint32_t worker_bytes = 0;
  BOOST_REQUIRE(address.size() > 24);
  std::memcpy(&worker_bytes, address.data() + 16, sizeof worker_bytes);
  BOOST_REQUIRE(address.size() >= 24 + worker_bytes);
  const Child stranger({std::getenv("TEST_STRANGER")});
  write_frame(stranger.socket(),
              of_a_fabric ? std::span(address).subspan(24, worker_bytes) : std::span<const std::byte>{});
  write_frame(stranger.socket(), where);
  const Bytes verdict = read_frame(stranger.socket());
  const std::string told(reinterpret_cast<const char*>(verdict.data()), verdict.size());
  BOOST_TEST(told == (of_a_fabric ? "not read, not written" : "read, written"));
  siginfo_t info{};
  BOOST_TEST(::waitid(P_PID, static_cast<id_t>(victim.pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0);
  BOOST_TEST(info.si_pid == 0,
             "ended: " << info.si_code << ", " << info.si_status);  // it still runs after the writes
  victim.kill();
}

BOOST_AUTO_TEST_CASE(too_few_descriptors_to_open_it_are_an_error_and_nothing_worse,
                     *boost::unit_test::precondition(descriptors_may_run_out)) {
  const Deadline deadline(120s);
  int opened = 0;
  for (rlim_t spare = 0; spare <= 32; spare += 4) {
    Forked child([&](int socket) {
      const auto first = open_over("tcp");  // opens everything that the library never closes
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = open_descriptors() - 1 + spare;
      ::setrlimit(RLIMIT_NOFILE, &limit);
      bool open = true;
      try {
        const auto second = open_over("tcp");
      } catch (const Error& error) {
        if (error.code() != ErrorCode::out_of_resources) throw;
        open = false;
      }
      write_frame(socket, std::as_bytes(std::span(&open, 1)));
    });
    const Bytes told = read_frame(child.socket());
    opened += static_cast<int>(told.front());
    BOOST_TEST(child.reap() == 0);
  }
  BOOST_TEST(opened > 0);
  BOOST_TEST(opened < 9);
}

BOOST_AUTO_TEST_SUITE_END()
