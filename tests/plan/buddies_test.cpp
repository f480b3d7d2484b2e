// SPDX-License-Identifier: Apache-2.0
// Who holds copies of whom.
#include "plan/buddies.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "support/random_layout.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(buddies)

using namespace shardwire;
using test::pick;
using test::Random;

BOOST_AUTO_TEST_CASE(the_ranks_of_a_host_are_copied_to_the_next_one) {
  const std::vector<std::int32_t> hosts{7, 7, 3, 3, 9, 9};
  const Buddies one = buddies_of(hosts, 1);
  BOOST_TEST(one.domains == 3);
  BOOST_TEST(
      (one.of == std::vector<std::vector<Rank>>{{Rank{2}}, {Rank{3}}, {Rank{4}}, {Rank{5}}, {Rank{0}}, {Rank{1}}}));
  const Buddies two = buddies_of(hosts, 2);
  BOOST_TEST((two.of[0] == std::vector{Rank{2}, Rank{4}}));
  BOOST_TEST((two.of[5] == std::vector{Rank{1}, Rank{3}}));
}

BOOST_AUTO_TEST_CASE(too_few_hosts_make_fewer_copies) {
  const std::vector<std::int32_t> pair{0, 1};
  BOOST_TEST((buddies_of(pair, 3).of == std::vector<std::vector<Rank>>{{Rank{1}}, {Rank{0}}}));
  const std::vector<std::int32_t> alone{4, 4};
  BOOST_TEST((buddies_of(alone, 1).of == std::vector<std::vector<Rank>>(2)));
  BOOST_TEST(buddies_of({}, 1).domains == 0);
}

BOOST_AUTO_TEST_CASE(no_loss_of_a_host_takes_all_copies_of_a_rank_and_hosts_of_one_size_are_loaded_alike) {
  Random random(test_seed());
  for (int run = 0; run < 300; ++run) {
    const int count = pick(random, 1, 6);
    const bool even = pick(random, 0, 1) == 0;
    std::vector<std::int32_t> hosts;
    for (int host = 0; host < count; ++host) {
      const int ranks = even ? 3 : pick(random, 1, 4);
      for (int rank = 0; rank < ranks; ++rank) hosts.push_back(host * 10);
    }
    for (std::size_t i = hosts.size() - 1; i > 0; --i) {
      std::swap(hosts[i], hosts[static_cast<std::size_t>(pick(random, 0, static_cast<int>(i)))]);
    }
    const int copies = pick(random, 0, 4);
    const Buddies buddies = buddies_of(hosts, copies);
    BOOST_REQUIRE(buddies.domains == count);
    std::map<Rank, std::size_t> load;
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      std::set<std::int32_t> at{hosts[rank]};
      for (const Rank holder : buddies.of[rank]) {
        at.insert(hosts[static_cast<std::size_t>(to_int(holder))]);
        ++load[holder];
      }
      BOOST_REQUIRE(at.size() == static_cast<std::size_t>(std::min(copies, count - 1)) + 1);
      BOOST_REQUIRE(buddies.of[rank].size() == at.size() - 1);
    }
    for (const auto& [holder, number] : load) {
      BOOST_REQUIRE((!even || number == static_cast<std::size_t>(std::min(copies, count - 1))));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
