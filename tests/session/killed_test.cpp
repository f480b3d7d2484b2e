// SPDX-License-Identifier: Apache-2.0
// A killed process leaves no named objects behind, and its peers end soon. tests/simulation/killed_members_test.cpp has all stages
// in made time.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <sched.h>
#include <sys/mount.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "session/hang.hpp"
#include "support/blocked.hpp"
#include "support/deadline.hpp"

namespace killed {

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using WallClock = std::chrono::steady_clock;

namespace {

constexpr auto soon = 20s;  // well before any deadline

// Other tests running at the same time use the host's shared memory.
bool with_shared_memory_of_its_own() {
  static const bool made = ::unshare(CLONE_NEWNS) == 0 &&
                           ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                           ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64m") == 0;
  return made;
}

boost::test_tools::assertion_result has_shared_memory_of_its_own(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(with_shared_memory_of_its_own());
  if (!result) result.message() << "a mount namespace cannot be made here: " << std::strerror(errno);
  return result;
}

// Mapped memory goes on being read though its owner is dead; everything else ends with it.
void require_lost_or_read_on(Restore& restore, const Tensor& tensor, bool read_on) {
  if (!read_on) {
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
    BOOST_TEST(!error.gaps().empty());
    return;
  }
  restore.wait();
  BOOST_TEST(tensor.is_filled());
}

std::set<std::string> names_in(const char* folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

// Files that the process has mapped or opened, of kinds that outlive it.
std::set<std::string> named_objects_of(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::set<std::string> found;
  const auto note = [&](const std::string& path) {
    const bool named = path.find("/dev/shm/") != std::string::npos ||
                       path.find("/dev/hugepages") != std::string::npos || path.find("/SYSV") != std::string::npos ||
                       path.find("/dev/mqueue") != std::string::npos;
    if (named) found.insert(path);
  };
  std::ifstream maps(process + "/maps");
  for (std::string line; std::getline(maps, line);) note(line);
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code gone;
    note(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  return found;
}

// System V segments; the library creates none.
std::size_t segments() {
  std::ifstream file("/proc/sysvipc/shm");
  std::size_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

std::string text_of(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + " ";
  return text;
}

}  // namespace

}  // namespace killed

BOOST_AUTO_TEST_SUITE(killed, *boost::unit_test::precondition(has_shared_memory_of_its_own))

// Rounds differ in the moment of the kill; the same must hold at each.
BOOST_DATA_TEST_CASE(a_process_that_is_killed_while_it_allocates_or_publishes_leaves_nothing_with_a_name,
                     boost::unit_test::data::make({"allocating", "publishing"}), task) {
  const Deadline deadline(400s);
  const std::size_t segments_before = segments();
  for (int round = 0; round < 5; ++round) {
    const auto port = free_port();
    Child child = peer_process(task, port);
    Session session = join_with(child, port);
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * round));
    const std::set<std::string> named = named_objects_of(child.pid());
    BOOST_TEST(named.empty(), text_of(named));
    const auto began = WallClock::now();
    child.kill();
    const Error error = failure_of([&] { session.gather("never", {}, patience); });
    BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
    BOOST_TEST((WallClock::now() - began < soon));
    child.reap();
    BOOST_TEST(names_in("/dev/shm").empty(), text_of(names_in("/dev/shm")));
  }
  BOOST_TEST(segments() <= segments_before);
}

BOOST_DATA_TEST_CASE(a_source_that_is_killed_while_it_is_read_leaves_nothing_and_ends_the_restore_soon,
                     boost::unit_test::data::make({"source", "arena source"}), task) {
  const Deadline deadline(400s);
  for (const auto method :
       {std::optional<RestoreMethod>(), std::optional(RestoreMethod::zcopy), std::optional(RestoreMethod::packed)}) {
    const auto port = free_port();
    Child child = peer_process(task, port);
    Session session = join_with(child, port);
    if (std::string_view(task) == "source") write_frame(child.socket(), {});  // the source publishes
    Tensor tensor;
    RestoreOptions options = by(method, patience);
    options.ingress_bytes_per_second = tensor_bytes / 2 * 3;
    Restore restore = moving(session, tensor.catalog(), options, [&] {
      const std::set<std::string> named = named_objects_of(child.pid());
      BOOST_TEST(named.empty(), text_of(named));
      child.kill();
    });
    const auto began = WallClock::now();
    const bool read_on = maps_arenas() && !method && std::string_view(task) == "arena source";
    require_lost_or_read_on(restore, tensor, read_on);
    BOOST_TEST((WallClock::now() - began < soon));
    child.reap();
    BOOST_TEST(names_in("/dev/shm").empty(), text_of(names_in("/dev/shm")));
    // The killed process's shared memory is gone, and this process is unharmed.
    std::memset(tensor.bytes().data(), 0x5a, tensor.bytes().size());  // a loop takes minutes with a sanitizer
  }
}

BOOST_DATA_TEST_CASE(a_source_that_is_killed_once_all_is_bound_leaves_nothing_and_is_read_on_where_it_is_mapped,
                     boost::unit_test::data::make({"source", "arena source"}), task) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child child = peer_process(task, port);
  bool killed = false;
  Session session = Session::join(member(0, 2, port), when_all_is_bound([&] {
                                    kill_and_await(child);
                                    killed = true;
                                  }));
  read_frame(child.socket());
  if (std::string_view(task) == "source") write_frame(child.socket(), {});  // the source publishes
  Tensor tensor;
  Restore restore = session.restore(tensor.catalog(), within(patience));
  const bool read_on = maps_arenas() && std::string_view(task) == "arena source";
  require_lost_or_read_on(restore, tensor, read_on);
  BOOST_TEST(killed);
  BOOST_TEST(restore.report().moved_bytes == (read_on ? tensor_bytes : 0U));
  BOOST_TEST(names_in("/dev/shm").empty(), text_of(names_in("/dev/shm")));
  std::memset(tensor.bytes().data(), 0x5a, tensor.bytes().size());  // a loop takes minutes with a sanitizer
}

BOOST_DATA_TEST_CASE(a_reader_that_is_killed_leaves_nothing_and_its_source_goes_on,
                     boost::unit_test::data::make({"moving zcopy reader", "moving packed reader", "moving reader"}),
                     task) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child child = peer_process(task, port);
  Session session = join_with(child, port);
  Tensor tensor(session);
  tensor.fill();
  Publication publication = session.publish(tensor.catalog());
  write_frame(child.socket(), {});
  int status = 0;
  BOOST_REQUIRE(::waitpid(child.pid(), &status, WUNTRACED) == child.pid());
  child.kill();
  const auto began = WallClock::now();
  publication.retire(patience);
  BOOST_TEST((WallClock::now() - began < soon));
  child.reap();
  BOOST_TEST(names_in("/dev/shm").empty(), text_of(names_in("/dev/shm")));
}

BOOST_AUTO_TEST_SUITE_END()
