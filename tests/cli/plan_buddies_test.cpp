// SPDX-License-Identifier: Apache-2.0
// The rest of a source once a host is lost.
#include "cli/plan_buddies.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <vector>

#include "cli/command.hpp"

BOOST_AUTO_TEST_SUITE(plan_buddies)

using namespace shardwire;
using cli::without_host;

namespace {

Case three_hosts() {
  return parse_case(R"j({
    "states": ["m"], "tensors": [{"fqn": "w", "shape": [12, 2]}], "hosts": 2,
    "source": {"ranks": 6, "rules": {"*": {"chunk": 0, "over": 6}}},
    "target": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}}})j");
}

using Hosts = std::vector<std::int32_t>;

}  // namespace

// Host h has ranks 2h and 2h + 1, whose copies are on the next host.
BOOST_AUTO_TEST_CASE(copies_on_the_lost_host_are_lost_too_and_copies_of_its_ranks_take_their_numbers) {
  const cli::LostHost first = without_host(three_hosts(), 1, 0);
  BOOST_TEST((first.source.copies == std::vector{Rank{2}, Rank{3}}));
  BOOST_TEST((first.topology.source_host == Hosts{1, 1, 1, 1, 2, 2, 2, 2}));
  BOOST_TEST((first.topology.colocated == Hosts{-1, -1, 2, 3}));
  BOOST_TEST(first.lost.empty());
  const cli::LostHost last = without_host(three_hosts(), 1, 2);
  BOOST_TEST((last.source.copies == std::vector{Rank{0}, Rank{1}}));
  BOOST_TEST((last.topology.source_host == Hosts{0, 0, 1, 1, 0, 0, 1, 1}));
}

BOOST_AUTO_TEST_CASE(without_copies_the_ranks_of_a_host_are_lost) {
  const cli::LostHost middle = without_host(three_hosts(), 0, 1);
  BOOST_TEST(middle.source.copies.empty());
  BOOST_TEST((middle.lost == std::vector{Rank{2}, Rank{3}}));
  BOOST_CHECK_THROW(without_host(three_hosts(), 1, 3), cli::UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
