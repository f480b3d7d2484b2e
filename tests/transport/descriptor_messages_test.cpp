// SPDX-License-Identifier: Apache-2.0
#include "support/descriptor_messages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <vector>

#include "shardwire/error.hpp"
#include "support/deadline.hpp"
#include "support/local_socket.hpp"
#include "support/open_descriptors.hpp"
#include "support/sockets.hpp"

BOOST_AUTO_TEST_SUITE(descriptor_messages)

using namespace shardwire;
using namespace shardwire::support;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

const std::array<std::byte, 4> four{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};

auto fails_with(ErrorCode code) {
  return [code](const Error& error) { return error.code() == code; };
}

}  // namespace

BOOST_AUTO_TEST_CASE(descriptors_arrive_with_the_first_of_the_bytes_and_are_closed_on_exec) {
  const Deadline deadline(120s);
  const auto ends = local_sockets();
  const Descriptor memory(::memfd_create("test", MFD_CLOEXEC));
  BOOST_REQUIRE(::ftruncate(memory.get(), 12345) == 0);
  const std::vector<int> sent(64, memory.get());
  BOOST_TEST(send_with_descriptors(ends[0].get(), four, sent) == four.size());
  std::array<std::byte, 3> into{};
  auto first = receive_with_descriptors(ends[1].get(), into, 64);
  BOOST_TEST(first.bytes == 3U);
  BOOST_TEST(!first.closed);
  BOOST_TEST((into[2] == std::byte{3}));
  BOOST_REQUIRE(first.descriptors.size() == sent.size());
  for (const auto& descriptor : first.descriptors) {
    BOOST_TEST((::fcntl(descriptor.get(), F_GETFD) & FD_CLOEXEC) != 0);
    BOOST_TEST(::lseek(descriptor.get(), 0, SEEK_END) == 12345);
  }
  const auto second = receive_with_descriptors(ends[1].get(), into, 64);
  BOOST_TEST(second.bytes == 1U);
  BOOST_TEST(second.descriptors.empty());
}

BOOST_AUTO_TEST_CASE(more_descriptors_than_allowed_are_refused_and_closed) {
  const Deadline deadline(120s);
  const auto ends = local_sockets();
  const std::size_t before = open_descriptors();
  std::array<std::byte, 4> into{};
  for (const std::size_t count : {1UL, 5UL, 6UL, 7UL, 100UL, max_passed_descriptors}) {
    const std::vector<int> sent(count, ends[0].get());
    BOOST_REQUIRE(send_with_descriptors(ends[0].get(), four, sent) == four.size());
    const std::size_t allowed = count == 1 ? 0 : std::min<std::size_t>(count - 1, 4);
    BOOST_CHECK_EXCEPTION(receive_with_descriptors(ends[1].get(), into, allowed), Error,
                          fails_with(ErrorCode::transport_failed));
    BOOST_TEST(open_descriptors() == before);
  }
  BOOST_REQUIRE(send_with_descriptors(ends[0].get(), four, std::vector<int>(max_passed_descriptors, 0)) == 4U);
  BOOST_TEST(receive_with_descriptors(ends[1].get(), into, 1000).descriptors.size() == max_passed_descriptors);
  BOOST_TEST(open_descriptors() == before);
}

BOOST_AUTO_TEST_CASE(a_control_message_cut_short_by_the_limit_of_this_process_is_refused_and_nothing_leaks) {
  const Deadline deadline(120s);
  const auto ends = local_sockets();
  const std::size_t before = open_descriptors();
  BOOST_REQUIRE(send_with_descriptors(ends[0].get(), four, std::vector<int>(20, ends[0].get())) == four.size());
  rlimit limit{};
  BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const Descriptor next(::dup(ends[0].get()));
  const rlimit tight{static_cast<rlim_t>(next.get()) + 6, limit.rlim_max};
  BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
  std::array<std::byte, 4> into{};
  BOOST_CHECK_EXCEPTION(receive_with_descriptors(ends[1].get(), into, 64), Error,
                        fails_with(ErrorCode::out_of_resources));
  BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  BOOST_TEST(open_descriptors() == before + 1);
}

BOOST_AUTO_TEST_CASE(other_control_messages_are_refused) {
  const Deadline deadline(120s);
  const auto ends = local_sockets();
  const int on = 1;
  BOOST_REQUIRE(::setsockopt(ends[1].get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
  BOOST_REQUIRE(send_with_descriptors(ends[0].get(), four, std::array<int, 1>{ends[0].get()}) == four.size());
  const std::size_t before = open_descriptors();
  std::array<std::byte, 4> into{};
  BOOST_CHECK_EXCEPTION(receive_with_descriptors(ends[1].get(), into, 8), Error,
                        fails_with(ErrorCode::transport_failed));
  BOOST_TEST(open_descriptors() == before);
}

BOOST_AUTO_TEST_CASE(a_peer_that_has_gone_and_a_socket_that_is_full_are_told_apart) {
  const Deadline deadline(120s);
  auto ends = local_sockets();
  BOOST_REQUIRE(::fcntl(ends[0].get(), F_SETFL, O_NONBLOCK) == 0);
  BOOST_REQUIRE(::fcntl(ends[1].get(), F_SETFL, O_NONBLOCK) == 0);
  std::array<std::byte, 4> into{};
  const auto nothing = receive_with_descriptors(ends[1].get(), into, 8);
  BOOST_TEST(nothing.bytes == 0U);
  BOOST_TEST(!nothing.closed);
  const std::vector<std::byte> block(100'000);
  std::size_t went = 1;
  while (went > 0) went = send_with_descriptors(ends[0].get(), block, {});
  ends[0].reset();
  std::vector<std::byte> large(1 << 22);
  auto received = receive_with_descriptors(ends[1].get(), large, 8);
  while (received.bytes > 0) received = receive_with_descriptors(ends[1].get(), large, 8);
  BOOST_TEST(received.closed);
  BOOST_CHECK_EXCEPTION(send_with_descriptors(ends[1].get(), four, {}), Error, fails_with(ErrorCode::peer_lost));
}

BOOST_AUTO_TEST_SUITE_END()
