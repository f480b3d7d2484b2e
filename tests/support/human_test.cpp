// SPDX-License-Identifier: Apache-2.0
#include "support/human.hpp"

#include <boost/test/unit_test.hpp>

#include "shardwire/types.hpp"

BOOST_AUTO_TEST_SUITE(human)

using namespace shardwire;
using support::human_speed;

BOOST_AUTO_TEST_CASE(a_speed_has_three_digits_and_the_unit_of_its_bytes) {
  BOOST_TEST(human_speed(64) == "64 B/s");
  BOOST_TEST(human_speed(1.2577e9) == "1.26 GB/s");
}

BOOST_AUTO_TEST_CASE(a_speed_may_be_of_bytes_in_a_time) {
  BOOST_TEST(human_speed(ByteCount{3'000'000}, 2) == "1.50 MB/s");
  BOOST_TEST(human_speed(ByteCount{3'000'000}, 0) == "-");
}

BOOST_AUTO_TEST_SUITE_END()
