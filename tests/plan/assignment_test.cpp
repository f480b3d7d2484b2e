// SPDX-License-Identifier: Apache-2.0
// The best assignment: compared with all permutations for small cases, and proved by its prices for large ones.
#include "plan/assignment.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "shardwire/relabel.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(assignment)

namespace {

using namespace shardwire;
using Labels = std::vector<std::int32_t>;

Flow flow(int source, int target, ByteCount bytes) {
  return {Rank{source}, Rank{target}, bytes};
}

ByteCount kept(const Labels& labels, const std::vector<Flow>& holdings) {
  ByteCount bytes = 0;
  for (const Flow& one : holdings) {
    if (labels[static_cast<std::size_t>(to_int(one.target))] == to_int(one.source)) bytes += one.bytes;
  }
  return bytes;
}

// The most bytes that any choice of processes keeps, found by trying all of them.
ByteCount best_of_all(int sources, int targets, const std::vector<Flow>& holdings, const std::set<int>& lost) {
  std::vector<std::vector<ByteCount>> table(static_cast<std::size_t>(targets),
                                            std::vector<ByteCount>(static_cast<std::size_t>(sources)));
  for (const Flow& one : holdings) {
    const bool gone = lost.contains(to_int(one.source));
    table[static_cast<std::size_t>(to_int(one.target))][static_cast<std::size_t>(to_int(one.source))] +=
        gone ? 0 : one.bytes;
  }
  const auto places = static_cast<std::size_t>(std::max(sources, targets));
  std::vector<std::size_t> order(places);
  std::iota(order.begin(), order.end(), std::size_t{0});
  ByteCount best = 0;
  do {
    ByteCount bytes = 0;
    for (std::size_t t = 0; t < table.size(); ++t) {
      if (order[t] < static_cast<std::size_t>(sources)) bytes += table[t][order[t]];
    }
    best = std::max(best, bytes);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

// Every process takes at most one target, no lost process takes any, and -1 occurs only if processes run out.
void check_form(const Labels& labels, int sources, int targets, const std::set<int>& lost) {
  BOOST_REQUIRE(labels.size() == static_cast<std::size_t>(targets));
  std::set<std::int32_t> used;
  for (const std::int32_t label : labels) {
    if (label == -1) continue;
    BOOST_TEST((label >= 0 && label < sources));
    BOOST_TEST(used.insert(label).second);
    BOOST_TEST(!lost.contains(label));
  }
  BOOST_TEST(used.size() == static_cast<std::size_t>(std::min(targets, sources - static_cast<int>(lost.size()))));
}

BipartiteGraph graph_from(std::uint32_t sources, std::uint32_t targets, const std::vector<Flow>& holdings) {
  std::vector<std::map<std::uint32_t, std::uint64_t>> rows(targets);
  for (const Flow& one : holdings) {
    if (one.bytes == 0) continue;
    rows[static_cast<std::size_t>(to_int(one.target))][static_cast<std::uint32_t>(to_int(one.source))] = one.bytes;
  }
  BipartiteGraph graph;
  graph.sources = sources;
  for (const auto& row : rows) {
    for (const auto& [source, weight] : row) graph.edges.push_back({source, weight});
    graph.first.push_back(static_cast<std::uint32_t>(graph.edges.size()));
  }
  return graph;
}

// Complementary slackness: no other assignment can be worth more.
void check_prices(const BipartiteGraph& graph, const Assignment& found) {
  std::vector<bool> taken(graph.sources);
  std::size_t wrong = 0;
  std::size_t matched_offers = 0;
  std::size_t matched = 0;
  for (std::uint32_t t = 0; t < graph.targets(); ++t) {
    const std::uint32_t mine = found.source_of[t];
    if (mine == unassigned) {
      wrong += found.target_price[t] != 0 ? 1 : 0;
    } else {
      wrong += taken[mine] ? 1 : 0;
      taken[mine] = true;
      ++matched;
    }
    for (std::uint32_t i = graph.first[t]; i < graph.first[t + 1]; ++i) {
      const Edge& edge = graph.edges[i];
      const std::uint64_t prices = found.target_price[t] + found.source_price[edge.source];
      wrong += prices < edge.weight ? 1 : 0;
      if (edge.source == mine) wrong += prices != edge.weight ? 1 : 0;
      matched_offers += edge.source == mine ? 1 : 0;
    }
  }
  for (std::uint32_t s = 0; s < graph.sources; ++s) wrong += !taken[s] && found.source_price[s] != 0 ? 1 : 0;
  BOOST_TEST(wrong == 0U);
  BOOST_TEST(matched_offers == matched);
}

std::vector<Flow> random_holdings(std::mt19937_64& random, int sources, int targets, double density, ByteCount most) {
  std::vector<Flow> holdings;
  std::uniform_real_distribution<double> chance(0, 1);
  std::uniform_int_distribution<ByteCount> bytes(0, most);
  for (int t = 0; t < targets; ++t) {
    for (int s = 0; s < sources; ++s) {
      if (chance(random) < density) holdings.push_back(flow(s, t, bytes(random)));
    }
  }
  return holdings;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_greedy_choice_would_lose) {
  // Target 0 gains most from source 0, but it is target 1's only source.
  const std::vector<Flow> holdings = {flow(0, 0, 10), flow(1, 0, 9), flow(0, 1, 8)};
  BOOST_TEST((best_assignment(2, 2, holdings) == Labels{1, 0}));
}

BOOST_AUTO_TEST_CASE(without_bytes_targets_take_processes_in_ascending_order) {
  BOOST_TEST((best_assignment(3, 2, {}) == Labels{0, 1}));
  BOOST_TEST((best_assignment(2, 4, {}) == Labels{0, 1, -1, -1}));
  const std::vector<Rank> lost = {Rank{0}, Rank{2}};
  BOOST_TEST((best_assignment(4, 3, {}, lost) == Labels{1, 3, -1}));
  const std::vector<Flow> holdings = {flow(0, 2, 5)};
  BOOST_TEST((best_assignment(4, 4, holdings) == Labels{1, 2, 0, 3}));
  BOOST_TEST(best_assignment(0, 0, {}).empty());
  BOOST_TEST((best_assignment(0, 2, {}) == Labels{-1, -1}));
}

BOOST_AUTO_TEST_CASE(equal_answers_keep_ranks_where_they_are) {
  std::vector<Flow> holdings;
  for (int t = 0; t < 8; ++t) {
    for (int s = 7; s >= 0; --s) holdings.push_back(flow(s, t, 100));
  }
  BOOST_TEST((best_assignment(8, 8, holdings) == Labels{0, 1, 2, 3, 4, 5, 6, 7}));
}

BOOST_AUTO_TEST_CASE(a_lost_process_takes_nothing_although_it_holds_most) {
  const std::vector<Flow> holdings = {flow(0, 0, 100), flow(1, 0, 1)};
  const std::vector<Rank> lost = {Rank{0}};
  BOOST_TEST((best_assignment(3, 1, holdings, lost) == Labels{1}));
}

BOOST_AUTO_TEST_CASE(a_pair_listed_twice_counts_twice) {
  const std::vector<Flow> holdings = {flow(1, 0, 3), flow(0, 0, 5), flow(1, 0, 3)};
  BOOST_TEST((best_assignment(2, 1, holdings) == Labels{1}));
}

BOOST_AUTO_TEST_CASE(numbers_that_make_no_sense_are_refused) {
  for (const Flow& one : {flow(2, 0, 1), flow(-1, 0, 1), flow(0, 2, 1), flow(0, -1, 1), flow(0, 0, ~ByteCount{0}),
                          flow(0, 0, ByteCount{1} << 62)}) {
    BOOST_CHECK_THROW(best_assignment(2, 2, std::vector<Flow>{one}), Error);
  }
  const std::vector<Flow> large = {flow(0, 0, (ByteCount{1} << 62) - 1), flow(1, 0, (ByteCount{1} << 62) - 2),
                                   flow(0, 1, (ByteCount{1} << 62) - 2)};
  BOOST_TEST((best_assignment(2, 2, large) == Labels{1, 0}));
}

BOOST_AUTO_TEST_CASE(small_random_cases_are_as_good_as_the_best_of_all_permutations) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 6000; ++round) {
    const int sources = static_cast<int>(random() % 7);
    const int targets = static_cast<int>(random() % 7);
    const double density = static_cast<double>(1 + random() % 10) / 10;
    const ByteCount most = round % 3 == 0 ? 3 : round % 3 == 1 ? 40 : ByteCount{1} << 55;
    const std::vector<Flow> holdings = random_holdings(random, sources, targets, density, most);
    std::set<int> lost;
    for (int s = 0; s < sources && round % 2 == 0; ++s) {
      if (random() % 4 == 0) lost.insert(s);
    }
    std::vector<Rank> lost_ranks;
    for (const int one : lost) lost_ranks.push_back(Rank{one});
    const Labels labels = best_assignment(sources, targets, holdings, lost_ranks);
    check_form(labels, sources, targets, lost);
    BOOST_TEST(kept(labels, holdings) == best_of_all(sources, targets, holdings, lost), "round " << round);
    BOOST_TEST((labels == best_assignment(sources, targets, holdings, lost_ranks)));
  }
}

BOOST_AUTO_TEST_CASE(prices_prove_large_random_answers) {
  std::mt19937_64 random(test_seed() + 1);
  struct Size {
    int sources;
    int targets;
    double density;
    ByteCount most;
  };
  for (const Size size : {Size{300, 300, 1, 1'000'000'000'000}, Size{300, 300, 1, 5}, Size{1024, 1016, 0.01, 1u << 30},
                          Size{1016, 1024, 0.02, 100}, Size{50, 700, 0.3, 1000}, Size{700, 50, 0.3, 1000}}) {
    const auto holdings = random_holdings(random, size.sources, size.targets, size.density, size.most);
    const BipartiteGraph graph =
        graph_from(static_cast<std::uint32_t>(size.sources), static_cast<std::uint32_t>(size.targets), holdings);
    const Assignment found = assign(graph);
    check_prices(graph, found);
    ByteCount matched = 0;
    for (const Flow& one : holdings) {
      if (found.source_of[static_cast<std::size_t>(to_int(one.target))] ==
          static_cast<std::uint32_t>(to_int(one.source)))
        matched += one.bytes;
    }
    BOOST_TEST(kept(best_assignment(size.sources, size.targets, holdings), holdings) == matched);
  }
}

// Neighbours outbid each other along one long chain.
BOOST_AUTO_TEST_CASE(long_chains_are_followed_to_their_end) {
  constexpr int ranks = 2000;
  std::vector<Flow> holdings;
  for (int t = 0; t < ranks; ++t) {
    holdings.push_back(flow(t, t, 10));
    if (t + 1 < ranks) holdings.push_back(flow(t + 1, t, 11));
  }
  const BipartiteGraph graph = graph_from(ranks, ranks, holdings);
  check_prices(graph, assign(graph));
  BOOST_TEST(kept(best_assignment(ranks, ranks, holdings), holdings) == (ranks - 1) * 11);
}

BOOST_AUTO_TEST_SUITE_END()
