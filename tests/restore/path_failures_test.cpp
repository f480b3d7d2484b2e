// SPDX-License-Identifier: Apache-2.0
#include "restore/source_rules.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>

BOOST_AUTO_TEST_SUITE(path_failures)

using namespace shardwire;
using namespace std::chrono_literals;
using restore::PathFailures;

namespace {

constexpr Rank source{3};
constexpr std::size_t tcp = 1;

void fail(PathFailures& failures, int times, std::size_t fabric = tcp) {
  for (int i = 0; i < times; ++i) failures.add(source, fabric, false, "reset");
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_fabric_is_given_up_for_one_source_after_so_many_failures_in_a_row) {
  PathFailures failures;
  fail(failures, PathFailures::max_in_a_row - 1);
  BOOST_TEST(failures.failed_fabrics(source).empty());
  fail(failures, 1);
  BOOST_TEST(failures.failed_fabrics(source).at(tcp) == "it failed 8 times in a row: reset");
  BOOST_TEST(failures.failed_fabrics(Rank{2}).empty());
  BOOST_TEST(failures.failed_fabrics(source).size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_connection_that_has_carried_bytes_begins_the_count_anew) {
  PathFailures failures;
  for (int round = 0; round < 100; ++round) {
    fail(failures, PathFailures::max_in_a_row - 1);
    failures.add(source, tcp, true, "reset");
    BOOST_TEST(failures.failed_fabrics(source).empty());
    BOOST_TEST((failures.take_wait() > 0ms));
  }
}

BOOST_AUTO_TEST_CASE(fabrics_are_counted_apart) {
  PathFailures failures;
  fail(failures, PathFailures::max_in_a_row, tcp);
  fail(failures, PathFailures::max_in_a_row - 1, 2);
  BOOST_TEST(failures.failed_fabrics(source).size() == 1U);
}

BOOST_AUTO_TEST_CASE(the_first_failure_is_followed_at_once_and_others_after_twice_the_time) {
  PathFailures failures;
  fail(failures, 1);
  BOOST_TEST((failures.take_wait() == 0ms));
  for (const auto wait : {10ms, 20ms, 40ms, 80ms, 160ms, 320ms, 640ms}) {
    fail(failures, 1);
    BOOST_TEST((failures.take_wait() == wait));
    BOOST_TEST((failures.take_wait() == 0ms));
  }
}

BOOST_AUTO_TEST_CASE(what_stood_still_is_given_twice_the_time_for_the_rest_of_the_restore) {
  PathFailures failures;
  BOOST_TEST((failures.patience(source, 10s) == 10s));
  failures.stood_still(source);
  failures.add(source, tcp, true, "nothing came");  // it had carried bytes
  BOOST_TEST((failures.patience(source, 10s) == 20s));
  failures.stood_still(source);
  BOOST_TEST((failures.patience(source, 10s) == 40s));
  BOOST_TEST((failures.patience(Rank{2}, 10s) == 10s));
  BOOST_TEST((failures.standing() == std::vector{source}));
}

BOOST_AUTO_TEST_SUITE_END()
