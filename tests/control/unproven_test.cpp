// SPDX-License-Identifier: Apache-2.0
#include "control/unproven.hpp"

#include <boost/test/unit_test.hpp>

#include "support/made_clock.hpp"

BOOST_AUTO_TEST_SUITE(unproven)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_CASE(the_oldest_of_one_address_makes_room) {
  MadeClock clock;
  const auto before = clock.now() - 1ms;
  Unproven table(clock, 2);
  BOOST_TEST(!table.add(1, "a"));
  BOOST_TEST(!table.add(2, "b"));
  BOOST_TEST(!table.add(3, "a"));
  BOOST_TEST((table.add(4, "a") == std::optional<Unproven::Id>(1)));
  BOOST_TEST((table.remove(3) == std::optional<std::string>("a")));
  BOOST_TEST(!table.remove(3));
  BOOST_TEST(!table.add(5, "a"));
  BOOST_TEST((table.oldest(clock.now()) == std::optional<Unproven::Id>(2)));
  BOOST_TEST(!table.oldest(before));
}

BOOST_AUTO_TEST_SUITE_END()
