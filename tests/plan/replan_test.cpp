// SPDX-License-Identifier: Apache-2.0
// Boxes that sources have not delivered, planned again over the other holders.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "geometry/overlap.hpp"
#include "move/transfer.hpp"
#include "plan/replan.hpp"
#include "support/random_layout.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(replan_of_the_rest)

using namespace shardwire;
using test::pick;
using test::Random;

namespace {

bool is_in(const std::vector<Rank>& ranks, Rank rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

std::vector<Rank> some_of(Random& random, int ranks, int one_in) {
  std::vector<Rank> some;
  for (int rank = 0; rank < ranks; ++rank) {
    if (pick(random, 1, one_in) == 1) some.push_back(Rank{rank});
  }
  return some;
}

JobLayout random_side(Random& random, const std::vector<TensorSpec>& specs) {
  const int ranks = pick(random, 1, 6);
  std::vector<TensorLayout> tensors;
  for (const TensorSpec& spec : specs) {
    const bool replicated = pick(random, 0, 2) == 0;
    tensors.push_back({spec, replicated ? Layout::replicated() : test::random_layout(random, spec.shape, ranks)});
  }
  std::ranges::shuffle(tensors, random);
  return JobLayout::uniform(ranks, tensors);
}

// A part of the box.
Box part_of(Random& random, Box box) {
  const auto dim = static_cast<std::size_t>(pick(random, 0, static_cast<int>(box.dims()) - 1));
  const Extent cut = pick(random, 0, static_cast<int>(box.size[dim]) - 1);
  box.offset[dim] += cut;
  box.size[dim] -= cut;
  return box;
}

const TensorKey& wanted_key(const Plan& plan, const Piece& piece) {
  return plan.wanted->tensors[to_index(piece.tensor)].spec.key;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_region_comes_from_a_holder_that_is_left) {
  int planned = 0;
  int refused = 0;
  int from_silent = 0;
  int from_slow = 0;
  for (unsigned seed = 0; seed < test::rounds(3000U); ++seed) {
    Random random(seed);
    const std::vector<TensorSpec> specs{
        {{"a", "m"}, DType::f32, {7, 5}}, {{"b", "m"}, DType::bf16, {12}}, {{"c", "v"}, DType::f32, {3, 4, 2}}};
    Planner planner(random_side(random, specs), random_side(random, specs));
    const Plan plan = planner.plan(Rank{pick(random, 0, planner.to().ranks - 1)});
    if (!plan.gaps.empty()) continue;
    const Schedule schedule = planner.schedule(plan);
    const Unavailable unavailable{.lost = some_of(random, planner.from().ranks, 3),
                                  .silent = some_of(random, planner.from().ranks, 3),
                                  .slow = some_of(random, planner.from().ranks, 3)};
    std::vector<PieceBox> missing;
    for (const ScheduledPiece& item : schedule.items) {
      if (pick(random, 0, 1) == 1) missing.push_back({item.piece, part_of(random, schedule.box(item))});
    }
    const auto gaps = without_holder(plan, missing, unavailable.lost);
    for (const PieceBox& one : missing) {
      const auto& holders = plan.holder_sets[plan.pieces[one.piece].holders];
      const bool none_left = std::ranges::all_of(holders, [&](Rank rank) { return is_in(unavailable.lost, rank); });
      const auto listed = std::ranges::count_if(gaps, [&](const Gap& gap) {
        return gap.box == one.box && gap.fqn == wanted_key(plan, plan.pieces[one.piece]).fqn &&
               gap.target == plan.target;
      });
      BOOST_REQUIRE((listed > 0) == none_left);
    }
    if (!gaps.empty()) {
      ++refused;
      BOOST_CHECK_EXCEPTION((void)replan(plan, schedule, planner.from(), missing, unavailable, Replicas::spread), Error,
                            [&](const Error& error) {
                              return error.code() == ErrorCode::layout_mismatch && error.gaps().size() == gaps.size();
                            });
      continue;
    }
    ++planned;
    const Replan again = replan(plan, schedule, planner.from(), missing, unavailable, Replicas::spread);
    BOOST_REQUIRE(again.plan.pieces.size() == missing.size());
    BOOST_REQUIRE(again.schedule.items.size() == missing.size());
    for (std::size_t i = 0; i < missing.size(); ++i) {
      const Piece& old = plan.pieces[missing[i].piece];
      const ScheduledPiece& item = again.schedule.items[i];
      BOOST_REQUIRE(item.piece == i);
      BOOST_REQUIRE(again.schedule.box(item) == missing[i].box);
      BOOST_REQUIRE(again.plan.box(again.plan.pieces[i]) == missing[i].box);
      BOOST_REQUIRE((again.plan.pieces[i].tensor == old.tensor));
      const auto& holders = plan.holder_sets[old.holders];
      BOOST_REQUIRE(is_in(holders, item.source));
      BOOST_REQUIRE(!is_in(unavailable.lost, item.source));
      const Section& section = planner.from().sections[item.section];
      BOOST_REQUIRE(is_in(section.ranks, item.source));
      BOOST_REQUIRE((section.manifest->tensors[to_index(item.held)].spec.key == wanted_key(plan, old)));
      const auto passed_over = [&](Rank holder) {
        return is_in(unavailable.lost, holder)     ? 3
               : is_in(unavailable.silent, holder) ? 2
               : is_in(unavailable.slow, holder)   ? 1
                                                   : 0;
      };
      from_silent += passed_over(item.source) == 2 ? 1 : 0;
      from_slow += passed_over(item.source) == 1 ? 1 : 0;
      for (const Rank holder : holders) BOOST_REQUIRE(passed_over(holder) >= passed_over(item.source));
    }
  }
  BOOST_TEST(planned > test::rounds(500));
  BOOST_TEST(refused > test::rounds(500));
  BOOST_TEST(from_silent > test::rounds(50));
  BOOST_TEST(from_slow > test::rounds(50));
}

BOOST_AUTO_TEST_CASE(corrupt_holders_of_a_tensor_are_not_chosen_for_it_and_others_are) {
  const TensorSpec w{{"w", "m"}, DType::f32, {8}};
  const TensorSpec v{{"v", "m"}, DType::f32, {8}};
  const std::vector<TensorLayout> both{{w, Layout::replicated()}, {v, Layout::replicated()}};
  Planner planner(JobLayout::uniform(2, both), JobLayout::uniform(1, both));
  const Plan plan = planner.plan(Rank{0});
  const Schedule schedule = planner.schedule(plan);
  std::vector<PieceBox> missing;
  for (std::uint32_t i = 0; i < plan.pieces.size(); ++i) missing.push_back({i, plan.box(plan.pieces[i])});
  const TensorId rotten = plan.pieces[0].tensor;
  for (const Rank corrupt : {Rank{0}, Rank{1}}) {
    const CorruptHolders holders{{rotten, {corrupt}}};
    BOOST_TEST(without_holder(plan, missing, {}, holders).empty());
    const Replan again = replan(plan, schedule, planner.from(), missing, {.corrupt = holders}, Replicas::first);
    for (const ScheduledPiece& item : again.schedule.items) {
      const bool is_rotten = again.plan.pieces[item.piece].tensor == rotten;
      BOOST_TEST(to_int(item.source) == (is_rotten && corrupt == Rank{0} ? 1 : 0));
    }
    // The rest of another run: the holder is still known to be corrupt.
    BOOST_TEST(without_holder(again.plan, missing, std::vector{Rank{1 - to_int(corrupt)}}, holders).size() == 1U);
  }
  const CorruptHolders everywhere{{rotten, {Rank{0}, Rank{1}}}};
  BOOST_TEST(without_holder(plan, missing, {}, everywhere).size() == 1U);
}

BOOST_AUTO_TEST_CASE(readers_and_regions_spread_over_the_holders_that_are_left) {
  const TensorSpec spec{{"w", "m"}, DType::f32, {64, 64}};
  std::map<Rank, int> first_choice;
  for (int target = 0; target < 6; ++target) {
    Planner planner(JobLayout::uniform(4, {{spec, Layout::replicated()}}),
                    JobLayout::uniform(6, {{spec, Layout::replicated()}}));
    const Plan plan = planner.plan(Rank{target});
    std::vector<PieceBox> missing;
    for (Extent row = 0; row < 64; row += 8) missing.push_back({0, {{row, 0}, {8, 64}}});
    for (const Replicas replicas : {Replicas::spread, Replicas::first}) {
      const Replan again = replan(plan, planner.schedule(plan), planner.from(), missing, {.lost = {Rank{1}}}, replicas);
      std::map<Rank, int> chosen;
      for (const ScheduledPiece& item : again.schedule.items) ++chosen[item.source];
      if (replicas == Replicas::first) {
        BOOST_TEST(chosen[Rank{0}] == 8);
        continue;
      }
      ++first_choice[again.schedule.items[0].source];
      BOOST_TEST(chosen.size() == 3U);
      for (const auto& [rank, count] : chosen) BOOST_TEST((count == 2 || count == 3));
    }
  }
  BOOST_TEST(first_choice.size() == 3U);
}

BOOST_AUTO_TEST_CASE(a_copy_that_is_added_to_a_plan_is_the_holder_that_a_new_plan_has) {
  int compared = 0;
  for (unsigned seed = 0; seed < test::rounds(1000U); ++seed) {
    Random random(seed);
    const std::vector<TensorSpec> specs{{{"a", "m"}, DType::f32, {7, 5}}, {{"b", "m"}, DType::bf16, {12}}};
    JobLayout from = random_side(random, specs);
    const JobLayout to = random_side(random, specs);
    const Rank target{pick(random, 0, to.ranks - 1)};
    const Topology apart{.colocated = std::vector<std::int32_t>(static_cast<std::size_t>(to.ranks), -1)};
    Plan plan = Planner(from, to, apart).plan(target);
    if (!plan.gaps.empty()) continue;
    ++compared;
    for (int added = 0; added < 2; ++added) {
      const Rank rank{pick(random, 0, from.ranks - 1)};
      BOOST_REQUIRE(to_int(add_copy(from, plan, rank)) == from.ranks + added);
      BOOST_REQUIRE((from.copies.back() == rank));
    }
    Planner planner(from, to, apart);
    const Plan anew = planner.plan(target);
    BOOST_REQUIRE(plan.pieces.size() == anew.pieces.size());
    for (std::size_t i = 0; i < plan.pieces.size(); ++i) {
      BOOST_REQUIRE(plan.box(plan.pieces[i]) == anew.box(anew.pieces[i]));
      BOOST_REQUIRE((plan.holder_sets[plan.pieces[i].holders] == anew.holder_sets[anew.pieces[i].holders]));
    }
    // Once all ranks are lost, what the copies hold comes from them.
    std::vector<Rank> lost;
    for (int rank = 0; rank < from.ranks; ++rank) lost.push_back(Rank{rank});
    const Schedule schedule = planner.schedule(anew);
    std::vector<PieceBox> missing;
    for (const ScheduledPiece& item : schedule.items) {
      const PieceBox one{item.piece, schedule.box(item)};
      if (without_holder(plan, std::span(&one, 1), lost).empty()) missing.push_back(one);
    }
    for (const ScheduledPiece& item :
         replan(plan, schedule, from, missing, {.lost = lost}, Replicas::spread).schedule.items) {
      BOOST_REQUIRE(to_int(item.source) >= from.ranks);
      BOOST_REQUIRE(is_in(from.sections[item.section].ranks, from.rank_of(item.source)));
    }
  }
  BOOST_TEST(compared > test::rounds(300));
}

BOOST_AUTO_TEST_CASE(what_is_missing_is_the_same_in_a_plan_over_other_holders) {
  int carried_boxes = 0;
  int gaps = 0;
  for (unsigned seed = 0; seed < test::rounds(1000U); ++seed) {
    Random random(seed);
    const std::vector<TensorSpec> specs{
        {{"a", "m"}, DType::f32, {7, 5}}, {{"b", "m"}, DType::bf16, {12}}, {{"c", "v"}, DType::f32, {3, 4, 2}}};
    const JobLayout to = random_side(random, specs);
    const Rank target{pick(random, 0, to.ranks - 1)};
    const Plan plan = Planner(random_side(random, specs), to).plan(target);
    const Plan other = Planner(random_side(random, specs), to).plan(target);
    std::vector<PieceBox> missing;
    for (std::uint32_t piece = 0; piece < plan.pieces.size(); ++piece) {
      if (pick(random, 0, 1) == 1) missing.push_back({piece, part_of(random, plan.box(plan.pieces[piece]))});
    }
    const CarriedOver carried = carry_over(plan, missing, other);
    // By tensor: the regions of both lists are disjoint, and make up what is missing.
    for (const TensorSpec& spec : specs) {
      std::vector<Box> left;
      for (const PieceBox& one : missing) {
        if (wanted_key(plan, plan.pieces[one.piece]) == spec.key) left.push_back(one.box);
      }
      const auto take = [&](const Box& box) {
        ElementCount before = 0;
        ElementCount after = 0;
        std::vector<Box> rest;
        for (const Box& one : left) {
          before += one.volume();
          const auto hole = intersect(one, box);
          hole ? subtract(one, *hole, rest) : rest.push_back(one);
        }
        for (const Box& one : rest) after += one.volume();
        BOOST_REQUIRE(before - after == box.volume());
        left = std::move(rest);
      };
      for (const PieceBox& one : carried.boxes) {
        const Piece& piece = other.pieces[one.piece];
        if (wanted_key(other, piece) != spec.key) continue;
        ++carried_boxes;
        BOOST_REQUIRE(contains(other.box(piece), one.box));
        take(one.box);
      }
      for (const Gap& gap : carried.gaps) {
        if (TensorKey{gap.fqn, gap.state} != spec.key) continue;
        ++gaps;
        for (const Piece& piece : other.pieces) {
          if (wanted_key(other, piece) == spec.key) BOOST_REQUIRE(!intersect(other.box(piece), gap.box));
        }
        take(gap.box);
      }
      BOOST_REQUIRE(left.empty());
    }
  }
  BOOST_TEST(carried_boxes > static_cast<int>(test::rounds(1000)));
  BOOST_TEST(gaps > static_cast<int>(test::rounds(50)));
}

BOOST_AUTO_TEST_CASE(parts_of_a_region_are_joined) {
  for (unsigned seed = 0; seed < test::rounds(500U); ++seed) {
    Random random(seed);
    const Box whole{{2, 3, 1}, {pick(random, 1, 5), pick(random, 1, 5), pick(random, 1, 6)}};
    std::vector<Box> parts;
    move::split(whole, pick(random, 1, 12), parts);
    std::ranges::shuffle(parts, random);
    std::vector<PieceBox> boxes;
    for (const std::uint32_t piece : {4U, 7U}) {
      for (const Box& part : parts) boxes.push_back({piece, part});
    }
    const auto all = joined(boxes);
    BOOST_REQUIRE(all.size() == 2U);
    BOOST_TEST((all[0].piece == 4 && all[1].piece == 7));
    for (const PieceBox& one : all) BOOST_TEST((one.box == whole));

    // With some missing, exactly the others are covered.
    std::vector<PieceBox> some(boxes.begin(), boxes.begin() + pick(random, 0, static_cast<int>(parts.size())));
    const auto fewer = joined(some);
    BOOST_TEST(fewer.size() <= some.size());
    for (const Box& part : parts) {
      const auto is_part = [&](const PieceBox& one) { return one.box == part; };
      ElementCount covered = 0;
      for (const PieceBox& one : fewer) {
        if (const auto common = intersect(one.box, part)) covered += common->volume();
      }
      BOOST_TEST(covered == (std::ranges::any_of(some, is_part) ? part.volume() : 0));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
