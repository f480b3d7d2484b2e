// SPDX-License-Identifier: Apache-2.0
#include "transport/silent_socket.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include "support/descriptors.hpp"
#include "support/sockets.hpp"

BOOST_AUTO_TEST_SUITE(silent_socket)

using namespace shardwire;
using namespace shardwire::test;
using transport::why_not_silent;

BOOST_AUTO_TEST_CASE(one_that_is_connected_and_silent_has_nothing_to_say) {
  const auto ends = local_sockets();
  BOOST_TEST(why_not_silent(ends[0].get()).empty());
  BOOST_TEST(why_not_silent(ends[0].get()).empty());
}

BOOST_AUTO_TEST_CASE(bytes_and_its_end_are_told_apart) {
  auto ends = local_sockets();
  BOOST_REQUIRE(::write(ends[1].get(), "abc", 3) == 3);
  BOOST_TEST(why_not_silent(ends[0].get()) == "the peer has sent 3 bytes where none are expected");
  ends[1].reset();
  BOOST_TEST(why_not_silent(ends[0].get()) == "the peer has closed its fabric or has ended");
}

BOOST_AUTO_TEST_CASE(an_error_is_said) {
  const support::Descriptor alone(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  BOOST_TEST(why_not_silent(alone.get()).starts_with("the connection to the peer has failed: "));
}

BOOST_AUTO_TEST_SUITE_END()
