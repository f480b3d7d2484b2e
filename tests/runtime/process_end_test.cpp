// SPDX-License-Identifier: Apache-2.0
// Why links to processes of this host watch the end of their sockets, and no handle of the process: of a process that is killed,
// the kernel closes the files before it lets a handle of the process tell. The latter would never come first.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>
#include <vector>

#include "support/descriptors.hpp"
#include "support/forked.hpp"

BOOST_AUTO_TEST_SUITE(process_end)

using namespace shardwire;
using namespace shardwire::test;
using WallClock = std::chrono::steady_clock;

namespace {

// Touches so much memory, and keeps threads busy, until it is killed.
void work(int socket, std::size_t bytes) {
  std::vector<std::byte> memory(bytes, std::byte{1});
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([] {
      for (;;) ::pause();
    });
  }
  (void)!::write(socket, "r", 1);
  for (;;) ::pause();
}

support::Descriptor handle_of(pid_t process) {
  return support::Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
}

boost::test_tools::assertion_result has_process_handles(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(static_cast<bool>(handle_of(::getpid())));
  if (!result) result.message() << "the kernel gives no handles of processes here";
  return result;
}

double milliseconds(WallClock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(has_process_handles))
BOOST_DATA_TEST_CASE(a_socket_of_a_killed_process_ends_no_later_than_a_handle_of_the_process_tells,
                     boost::unit_test::data::make({1, 16, 256}), megabytes) {
  for (int round = 0; round < 10; ++round) {
    const Forked process([&](int socket) { work(socket, static_cast<std::size_t>(megabytes) << 20); });
    char started = 0;
    BOOST_REQUIRE(::read(process.socket(), &started, 1) == 1);
    const support::Descriptor handle = handle_of(process.pid());
    BOOST_REQUIRE(handle.get() >= 0);
    const auto began = WallClock::now();
    process.kill();
    std::optional<WallClock::duration> ended;
    for (;;) {
      // The handle is looked at first: what it tells must already be known by the socket.
      pollfd told{handle.get(), POLLIN, 0};
      BOOST_REQUIRE(::poll(&told, 1, 0) >= 0);
      pollfd closed{process.socket(), POLLIN, 0};
      BOOST_REQUIRE(::poll(&closed, 1, 0) >= 0);
      const auto now = WallClock::now() - began;
      if (closed.revents != 0 && !ended) ended = now;
      if (told.revents == 0) continue;
      BOOST_TEST(ended.has_value());
      BOOST_TEST_MESSAGE(megabytes << " MiB: end of file after " << milliseconds(ended.value_or(now))
                                   << " ms, the handle after " << milliseconds(now) << " ms");
      break;
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
