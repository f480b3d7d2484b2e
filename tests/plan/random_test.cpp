// SPDX-License-Identifier: Apache-2.0
// Plans of random jobs, compared with an oracle that examines every element of every rank.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <bit>
#include <map>

#include "geometry/overlap.hpp"
#include "shardwire/plan.hpp"
#include "support/random_layout.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(random_plans)

namespace {

using namespace shardwire;
using test::pick;
using test::Random;

using Ranks = std::uint32_t;  // a bit per rank

Ranks bit(Rank rank) {
  return Ranks{1} << to_int(rank);
}

template <typename Visit>
void for_each_element(const Extents& shape, const Box& box, Visit visit) {
  const ElementCount volume = box.volume();
  for (ElementCount i = 0; i < volume; ++i) {
    ElementCount rest = i;
    ElementCount index = 0;
    ElementCount step = 1;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      index += (box.offset[dim] + rest % box.size[dim]) * step;
      rest /= box.size[dim];
      step *= shape[dim];
    }
    visit(static_cast<std::size_t>(index));
  }
}

JobLayout random_side(Random& random, const std::vector<TensorSpec>& specs) {
  JobLayout job{pick(random, 1, 9), {}};
  const int sections = pick(random, 0, 2) == 0 ? 2 : 1;
  std::vector<std::vector<Rank>> ranks(static_cast<std::size_t>(sections));
  for (int rank = 0; rank < job.ranks; ++rank) {
    ranks[static_cast<std::size_t>(pick(random, 0, sections - 1))].push_back(Rank{rank});
  }
  for (const auto& members : ranks) {
    Manifest manifest{job.ranks, {}};
    for (const TensorSpec& spec : specs) {
      if (pick(random, 0, 9) == 0) continue;  // a section may lack keys
      manifest.tensors.push_back({spec, test::random_layout(random, spec.shape, job.ranks)});
    }
    std::shuffle(manifest.tensors.begin(), manifest.tensors.end(), random);
    job.sections.push_back({std::make_shared<const Manifest>(std::move(manifest)), members});
  }
  return job;
}

/// Ranks that hold each element of a tensor.
std::vector<Ranks> holders_of(const JobLayout& job, const TensorSpec& spec) {
  std::vector<Ranks> holders(static_cast<std::size_t>(volume_of(spec.shape)));
  for (const Section& section : job.sections) {
    for (const TensorLayout& tensor : section.manifest->tensors) {
      if (tensor.spec.key != spec.key) continue;
      for (const Rank rank : section.ranks) {
        for (const PlacedBox& placed : tensor.layout.boxes_of(spec.shape, rank)) {
          for_each_element(spec.shape, placed.box, [&](std::size_t element) { holders[element] |= bit(rank); });
        }
      }
    }
  }
  return holders;
}

bool in_one_box(const JobLayout& job, const TensorSpec& spec, Rank rank, const Box& box) {
  for (const Section& section : job.sections) {
    if (std::find(section.ranks.begin(), section.ranks.end(), rank) == section.ranks.end()) continue;
    for (const TensorLayout& tensor : section.manifest->tensors) {
      if (tensor.spec.key != spec.key) continue;
      for (const PlacedBox& placed : tensor.layout.boxes_of(spec.shape, rank)) {
        if (contains(placed.box, box)) return true;
      }
    }
  }
  return false;
}

struct Seen {
  int pieces = 0;
  int gaps = 0;
  int local = 0;
  int replicated = 0;
  int whole_jobs = 0;
};

void check_plan(const JobLayout& from, const Plan& plan, Seen& seen) {
  for (std::uint32_t t = 0; plan.wanted != nullptr && t < plan.wanted->tensors.size(); ++t) {
    const TensorLayout& tensor = plan.wanted->tensors[t];
    const TensorSpec& spec = tensor.spec;
    const std::vector<Ranks> holders = holders_of(from, spec);
    std::vector<int> open(holders.size());  // number of times that an element is wanted and not yet covered
    if (volume_of(spec.shape) != 1) {
      for (const PlacedBox& placed : tensor.layout.boxes_of(spec.shape, plan.target)) {
        for_each_element(spec.shape, placed.box, [&](std::size_t element) { ++open[element]; });
      }
    }
    for (const Piece& piece : plan.pieces) {
      if (to_index(piece.tensor) != t) continue;
      Ranks set = 0;
      for (const Rank rank : plan.holder_sets[piece.holders]) {
        set |= bit(rank);
        BOOST_REQUIRE(in_one_box(from, spec, rank, plan.box(piece)));
      }
      BOOST_REQUIRE(static_cast<std::size_t>(std::popcount(set)) == plan.holder_sets[piece.holders].size());
      BOOST_REQUIRE(set != 0);
      BOOST_REQUIRE(!plan.box(piece).empty());
      for_each_element(spec.shape, plan.box(piece), [&](std::size_t element) {
        --open[element];
        BOOST_REQUIRE((holders[element] & bit(plan.target)) == (set & bit(plan.target)));  // own data first
      });
      ++seen.pieces;
      seen.local += (set & bit(plan.target)) != 0 ? 1 : 0;
      seen.replicated += std::popcount(set) > 1 ? 1 : 0;
    }
    for (const Gap& gap : plan.gaps) {
      if (gap.fqn != spec.key.fqn || gap.state != spec.key.state) continue;
      BOOST_REQUIRE(!gap.box.empty());
      BOOST_REQUIRE(gap.target == plan.target);
      for_each_element(spec.shape, gap.box, [&](std::size_t element) {
        --open[element];
        BOOST_REQUIRE(holders[element] == 0);
      });
      ++seen.gaps;
    }
    BOOST_REQUIRE(std::all_of(open.begin(), open.end(), [](int count) { return count == 0; }));
  }
}

void check_schedule(Planner& planner, Plan plan, const std::vector<Rank>& lost) {
  plan.gaps.clear();
  const auto is_lost = [&](Rank rank) { return std::find(lost.begin(), lost.end(), rank) != lost.end(); };
  std::vector<Box> orphans;
  for (const Piece& piece : plan.pieces) {
    const auto& set = plan.holder_sets[piece.holders];
    if (std::all_of(set.begin(), set.end(), is_lost)) orphans.push_back(plan.box(piece));
  }
  try {
    const Schedule schedule = planner.schedule(plan, lost);
    BOOST_REQUIRE(orphans.empty());
    std::vector<std::vector<Box>> parts(plan.pieces.size());
    for (const ScheduledPiece& item : schedule.items) {
      parts[item.piece].push_back(schedule.box(item));
      const Piece& piece = plan.pieces[item.piece];
      const auto& set = plan.holder_sets[piece.holders];
      BOOST_REQUIRE(std::binary_search(set.begin(), set.end(), item.source));
      BOOST_REQUIRE(!is_lost(item.source));
      const bool own = std::binary_search(set.begin(), set.end(), plan.target) && !is_lost(plan.target);
      BOOST_REQUIRE(own == (item.source == plan.target));
      const Section& section = planner.from().sections[item.section];
      BOOST_REQUIRE(std::binary_search(section.ranks.begin(), section.ranks.end(), item.source));
      BOOST_REQUIRE(
          (section.manifest->tensors[to_index(item.held)].spec == plan.wanted->tensors[to_index(piece.tensor)].spec));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) BOOST_REQUIRE(covers_exactly(plan.box(plan.pieces[i]), parts[i]));
  } catch (const Error& error) {
    BOOST_REQUIRE((error.code() == ErrorCode::layout_mismatch));
    std::vector<Box> reported;
    for (const Gap& gap : error.gaps()) reported.push_back(gap.box);
    BOOST_REQUIRE((!orphans.empty() && reported == orphans));
  }
}

// The listing of one target rank equals its plan and schedule, in the same order, and its sum equals the rank's totals.
void check_listed(Planner& planner, Plan plan) {
  const std::vector<Rank> only{plan.target};
  std::vector<Gap> gaps;
  planner.each_gap(only, [&](const Gap& gap) { gaps.push_back(gap); });
  BOOST_REQUIRE(gaps == plan.gaps);
  const JobTotals totals = planner.tally(only);
  BOOST_REQUIRE(totals.gaps == gaps.size());

  plan.gaps.clear();
  const Schedule schedule = planner.schedule(plan);
  BOOST_REQUIRE(totals.pieces == schedule.items.size());
  auto next = schedule.items.begin();
  ByteCount bytes = 0;
  planner.each_transfer(only, [&](const PlannedTransfer& transfer) {
    BOOST_REQUIRE(next != schedule.items.end());
    const TensorLayout& tensor = plan.wanted->tensors[to_index(plan.pieces[next->piece].tensor)];
    BOOST_REQUIRE((transfer.tensor == tensor.spec && transfer.target == plan.target));
    BOOST_REQUIRE((transfer.source == next->source && transfer.box == schedule.box(*next)));
    bytes += transfer.bytes;
    ++next;
  });
  BOOST_REQUIRE(next == schedule.items.end());
  BOOST_REQUIRE(totals.needed == bytes);
}

using Delivered = std::map<std::tuple<Rank, Rank, TensorKey>, std::vector<Box>>;  // by source, target and tensor

// The whole job, seen from the sources, and seen by a planner of one rank only: all views agree.
void check_job(Planner& planner, const std::vector<Rank>& lost, const Topology& topology, Seen& seen) {
  JobTotals totals;
  try {
    totals = planner.totals(lost);
  } catch (const Error& error) {
    BOOST_REQUIRE((error.code() == ErrorCode::layout_mismatch && !error.gaps().empty()));
    return;
  }
  ++seen.whole_jobs;
  Delivered read;
  std::map<std::pair<Rank, Rank>, ByteCount> flows;  // by target and source
  std::map<std::pair<Rank, Rank>, ByteCount> holdings;
  for (int r = 0; r < planner.to().ranks; ++r) {
    const Rank target{r};
    const Plan plan = planner.plan(target);
    const Schedule schedule = planner.schedule(plan, lost);
    Planner alone(planner.from(), planner.to(), topology);
    const Schedule same = alone.schedule(alone.plan(target), lost);
    BOOST_REQUIRE(same.items.size() == schedule.items.size());
    BOOST_REQUIRE(totals.targets[static_cast<std::size_t>(r)].pieces == schedule.items.size());
    for (std::size_t i = 0; i < schedule.items.size(); ++i) {
      const ScheduledPiece& item = schedule.items[i];
      BOOST_REQUIRE((same.items[i].source == item.source && same.box(same.items[i]) == schedule.box(item)));
      const TensorSpec& spec = plan.wanted->tensors[to_index(plan.pieces[item.piece].tensor)].spec;
      const Box& box = schedule.box(item);
      read[{item.source, target, spec.key}].push_back(box);
      flows[{target, item.source}] += static_cast<ByteCount>(box.volume()) * item_size(spec.dtype);
    }
    for (std::size_t t = 0; plan.wanted != nullptr && t < plan.wanted->tensors.size(); ++t) {
      const TensorLayout& tensor = plan.wanted->tensors[t];
      if (volume_of(tensor.spec.shape) == 1) continue;
      const std::vector<Ranks> holders = holders_of(planner.from(), tensor.spec);
      for (const PlacedBox& placed : tensor.layout.boxes_of(tensor.spec.shape, target)) {
        for_each_element(tensor.spec.shape, placed.box, [&](std::size_t element) {
          for (int source = 0; source < planner.from().ranks; ++source) {
            if ((holders[element] & bit(Rank{source})) == 0) continue;
            if (std::find(lost.begin(), lost.end(), Rank{source}) != lost.end()) continue;
            holdings[{target, Rank{source}}] += item_size(tensor.spec.dtype);
          }
        });
      }
    }
  }
  const auto same_flows = [](const std::vector<Flow>& listed, const auto& expected) {
    auto next = expected.begin();
    for (const Flow& flow : listed) {
      if (next == expected.end() || next->first != std::pair(flow.target, flow.source)) return false;
      if ((next++)->second != flow.bytes) return false;
    }
    return next == expected.end();
  };
  BOOST_REQUIRE(same_flows(totals.flows, flows));
  BOOST_REQUIRE(same_flows(planner.holdings(lost), holdings));
  BOOST_REQUIRE(totals.needed == totals.local + totals.remote);

  Delivered given;
  for (int r = 0; r < planner.from().ranks; ++r) {
    for (const Delivery& delivery : planner.deliveries(Rank{r}, lost)) {
      const TensorSpec& spec =
          planner.to().sections[delivery.section].manifest->tensors[to_index(delivery.wanted)].spec;
      given[{Rank{r}, delivery.target, spec.key}].push_back(delivery.box);
    }
  }
  for (Delivered* side : {&read, &given}) {
    for (auto& [key, boxes] : *side) std::sort(boxes.begin(), boxes.end());
  }
  BOOST_REQUIRE((read == given));
}

Topology random_topology(Random& random, int source_ranks, int target_ranks) {
  Topology topology;
  if (pick(random, 0, 1) == 0) {
    for (int r = 0; r < target_ranks; ++r) topology.colocated.push_back(pick(random, -1, source_ranks - 1));
  }
  if (pick(random, 0, 1) == 0) {
    for (int r = 0; r < target_ranks; ++r) topology.target_host.push_back(pick(random, 0, 2));
    for (int r = 0; r < source_ranks; ++r) topology.source_host.push_back(pick(random, 0, 2));
  }
  return topology;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_element_is_in_one_piece_or_one_gap) {
  const std::uint64_t seed = test::seed();
  Seen seen;
  for (std::uint64_t round = 0; round < test::rounds(std::uint64_t{1500}); ++round) {
    BOOST_TEST_CONTEXT("TEST_SEED=" << seed << " round " << round) {
      Random random(seed + round * 1'000'003);
      std::vector<TensorSpec> specs;
      for (int t = 0; t < 3; ++t) {
        specs.push_back({{t / 2 == 0 ? "v" : "w", t % 2 == 0 ? "exp_avg" : "master"},
                         DType::bf16,
                         t == 1 ? specs[0].shape : test::random_shape(random)});
      }
      JobLayout from = random_side(random, specs);
      std::vector<Rank> lost;
      if (pick(random, 0, 1) == 0) lost.push_back(Rank{pick(random, 0, from.ranks - 1)});
      from = from.without(lost);
      Planner planner(from, random_side(random, specs));
      for (int target = 0; target < planner.to().ranks; ++target) {
        const Plan plan = planner.plan(Rank{target});
        check_plan(from, plan, seen);
        check_schedule(planner, plan, {});
        check_listed(planner, plan);
        check_schedule(planner, plan, {Rank{pick(random, 0, from.ranks - 1)}, Rank{target}});
      }
      const Topology topology = random_topology(random, from.ranks, planner.to().ranks);
      Planner placed(from, planner.to(), topology);
      check_job(placed, {}, topology, seen);
      check_job(placed, {Rank{pick(random, 0, from.ranks - 1)}}, topology, seen);
    }
  }
  // The test is valid only if all of these occurred.
  BOOST_TEST(seen.pieces > test::rounds(10'000));
  BOOST_TEST(seen.gaps > test::rounds(1'000));
  BOOST_TEST(seen.local > test::rounds(1'000));
  BOOST_TEST(seen.replicated > test::rounds(1'000));
  BOOST_TEST(seen.whole_jobs > test::rounds(500));
  BOOST_TEST_MESSAGE(seen.pieces << " pieces, " << seen.gaps << " gaps");
}

BOOST_AUTO_TEST_SUITE_END()
