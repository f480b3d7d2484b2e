// SPDX-License-Identifier: Apache-2.0
#include "peers/payload_sockets.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstddef>
#include <utility>

#include <sys/socket.h>

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

BOOST_AUTO_TEST_SUITE_END()
