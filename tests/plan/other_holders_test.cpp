// SPDX-License-Identifier: Apache-2.0
#include "plan/other_holders.hpp"

#include <boost/test/unit_test.hpp>

#include <map>
#include <memory>
#include <set>
#include <vector>

BOOST_AUTO_TEST_SUITE(other_holders)

using namespace shardwire;

namespace {

const Extents shape{8, 8};

JobLayout side(int ranks, const Layout& layout) {
  return JobLayout::uniform(ranks, {{{{"w", "exp_avg"}, DType::f32, shape}, layout}});
}

// Boxes that overlap in part, by rank; sorted by neither size nor place.
const std::map<Rank, std::vector<Box>> uneven{{Rank{0}, {Box{{2, 0}, {3, 8}}}},
                                              {Rank{1}, {Box{{0, 0}, {8, 4}}}},
                                              {Rank{2}, {Box{{0, 0}, {8, 8}}}},
                                              {Rank{3}, {Box{{0, 2}, {4, 6}}}}};

std::size_t parts_of(const OtherHolders& others) {
  std::size_t parts = 0;
  for (const OtherHolders::OfRank& one : others.ranks()) parts += one.parts.size();
  return parts;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_holder_of_an_element_is_listed_once_apart_from_the_lowest) {
  for (const Layout& wanted : {Layout::replicated(), Layout::chunk(0, 3), Layout::chunk(1, 3)}) {
    Planner planner(side(4, Layout::boxes(uneven)), side(3, wanted), {}, Replicas::compare);
    for (int target = 0; target < 3; ++target) {
      const Plan plan = planner.plan(Rank{target});
      const OtherHolders others(planner, plan);
      std::map<std::vector<Extent>, std::multiset<Rank>> listed;
      for (const OtherHolders::OfRank& one : others.ranks()) {
        for (const OtherHolders::Part& part : one.parts) {
          const Box& box = others.box(part);
          BOOST_TEST(contains(plan.box(plan.pieces[part.piece]), box));
          for (Extent row = box.lower(0); row < box.upper(0); ++row) {
            for (Extent column = box.lower(1); column < box.upper(1); ++column) {
              listed[{row, column}].insert(one.rank);
            }
          }
        }
      }
      std::size_t expected = 0;
      for (const PlacedBox& box : wanted.boxes_of(shape, Rank{target})) {
        for (Extent row = box.box.lower(0); row < box.box.upper(0); ++row) {
          for (Extent column = box.box.lower(1); column < box.box.upper(1); ++column) {
            std::multiset<Rank> holders;
            for (const auto& [rank, held] : uneven) {
              if (contains(held.front(), Box{{row, column}, {1, 1}})) holders.insert(rank);
            }
            holders.erase(holders.begin());
            if (holders.empty()) continue;
            ++expected;
            BOOST_TEST((listed[{row, column}] == holders));
          }
        }
      }
      BOOST_TEST(listed.size() == expected);
    }
  }
}

BOOST_AUTO_TEST_CASE(without_replicas_there_are_none) {
  Planner planner(side(4, Layout::chunk(0, 4)), side(2, Layout::chunk(1, 2)), {}, Replicas::compare);
  BOOST_TEST(OtherHolders(planner, planner.plan(Rank{1})).ranks().empty());
}

BOOST_AUTO_TEST_CASE(the_own_process_of_a_target_is_a_holder_like_all_others) {
  Planner planner(side(3, Layout::replicated()), side(3, Layout::replicated()), {}, Replicas::compare);
  const OtherHolders others(planner, planner.plan(Rank{2}));
  BOOST_TEST_REQUIRE(others.ranks().size() == 2U);
  BOOST_TEST((others.ranks()[0].rank == Rank{1}));
  BOOST_TEST((others.ranks()[1].rank == Rank{2}));
}

BOOST_AUTO_TEST_CASE(tensors_split_alike_share_boxes_and_keep_their_numbers_at_each_holder) {
  const auto tensor = [](const char* fqn) {
    return TensorLayout{{{fqn, "exp_avg"}, DType::f32, shape}, Layout::replicated()};
  };
  // Rank 1 lists them in another order, one of them under another name, and one that the target does not want.
  const std::vector<Alias> tied{{"tied", "b"}};
  const auto first = std::make_shared<const Manifest>(Manifest{2, {tensor("a"), tensor("b")}, tied});
  const auto second = std::make_shared<const Manifest>(Manifest{2, {tensor("c"), tensor("tied"), tensor("a")}, tied});
  Planner planner({2, {{first, {Rank{0}}}, {second, {Rank{1}}}}}, JobLayout::uniform(1, {tensor("a"), tensor("b")}), {},
                  Replicas::compare);
  const OtherHolders others(planner, planner.plan(Rank{0}));
  BOOST_TEST_REQUIRE(others.ranks().size() == 1U);
  const OtherHolders::OfRank& holder = others.ranks().front();
  BOOST_TEST((holder.rank == Rank{1}));
  BOOST_TEST(holder.section == 1U);
  BOOST_TEST_REQUIRE(holder.parts.size() == 2U);
  BOOST_TEST((holder.parts[0].held == TensorId{2}));
  BOOST_TEST((holder.parts[1].held == TensorId{1}));
  BOOST_TEST(holder.parts[0].region == holder.parts[1].region);
}

BOOST_AUTO_TEST_CASE(replicas_of_a_box_are_one_region) {
  Planner planner(side(8, Layout::mesh({4, 2}, {Replicate{}, Shard{0}})), side(1, Layout::replicated()), {},
                  Replicas::compare);
  const OtherHolders others(planner, planner.plan(Rank{0}));
  BOOST_TEST(parts_of(others) == 6U);
  std::set<std::uint32_t> regions;
  for (const OtherHolders::OfRank& one : others.ranks()) {
    for (const OtherHolders::Part& part : one.parts) regions.insert(part.region);
  }
  BOOST_TEST(regions.size() == 2U);
}

BOOST_AUTO_TEST_SUITE_END()
