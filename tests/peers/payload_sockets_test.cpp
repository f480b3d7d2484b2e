// SPDX-License-Identifier: Apache-2.0
#include "peers/payload_sockets.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "fuzz/made_peer.hpp"
#include "support/made_clock.hpp"
#include "support/sockets.hpp"

BOOST_AUTO_TEST_SUITE(payload_sockets)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

wire::Hello hello_of(std::uint64_t incarnation) {
  wire::Hello hello;
  hello.rank = 1;
  hello.world_size = 2;
  hello.incarnation = incarnation;
  return hello;
}

bool is_closed(const support::Descriptor& other_end) {
  std::byte any{};
  return ::recv(other_end.get(), &any, 1, MSG_DONTWAIT) == 0;
}

}  // namespace

BOOST_AUTO_TEST_CASE(sockets_that_nobody_binds_are_closed_after_a_while) {
  MadeClock clock;
  SocketEnds ends = local_sockets();
  AttachedSockets table(clock, 20s);
  table.add(hello_of(7), {5, 0}, std::move(ends[0]));
  clock.advance(19s);
  BOOST_TEST(!is_closed(ends[1]));
  clock.advance(21s);
  BOOST_TEST(is_closed(ends[1]));
  BOOST_TEST(table.take(hello_of(7), 5).empty());
}

BOOST_AUTO_TEST_CASE(sockets_of_another_process_are_not_bound) {
  MadeClock clock;
  SocketEnds ends = local_sockets();
  AttachedSockets table(clock);
  table.add(hello_of(7), {5, 0}, std::move(ends[0]));
  BOOST_TEST(table.take(hello_of(8), 5).empty());
  BOOST_TEST(table.take(hello_of(7), 6).empty());
  BOOST_TEST(table.take(hello_of(7), 5).size() == 1U);
  BOOST_TEST(table.take(hello_of(7), 5).empty());
}

BOOST_AUTO_TEST_CASE(a_socket_is_attached_right_behind_the_proof_of_the_reader) {
  fuzz::MadeLoop loop;
  const Identity identity = fuzz::identity_of(0);
  const wire::MemberRecord source{
      .rank = 1, .incarnation = fuzz::peer_hello().incarnation, .host = "elsewhere", .address = "192.0.2.2", .port = 1};
  const transport::SocketNeeds one{.kind = transport::SocketNeeds::Kind::network, .count = 1, .max_count = 1};
  int done = 0;
  const OpeningSockets opening(loop, source, one, 5, identity,
                               [&](const std::vector<transport::OpenSocket>&, const Error*) { ++done; });
  loop.stream->establish();
  loop.stream->deliver(fuzz::frame_of(fuzz::peer_hello()));
  const std::vector<wire::Message> sent = fuzz::messages_in(loop.stream->written());
  BOOST_REQUIRE_EQUAL(sent.size(), 3U);
  BOOST_TEST((sent.back() == wire::Message(wire::Attach{5, 0})));
  BOOST_TEST(done == 0);  // the source has proven nothing
}

BOOST_AUTO_TEST_SUITE_END()
