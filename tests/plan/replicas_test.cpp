// SPDX-License-Identifier: Apache-2.0
// Choice between the holders of a replicated box.
#include <boost/test/unit_test.hpp>

#include <map>
#include <set>
#include <stdexcept>
#include <vector>

#include "geometry/overlap.hpp"
#include "shardwire/plan.hpp"

BOOST_AUTO_TEST_SUITE(replicas)

using namespace shardwire;

namespace {

const Extents shape{4096, 512};
constexpr ByteCount item = 4;
constexpr ByteCount whole = 4096 * 512 * item;

JobLayout side(int ranks, const Layout& layout, const Extents& of = shape) {
  return JobLayout::uniform(ranks, {{{{"w", "exp_avg"}, DType::f32, of}, layout}});
}

Layout hsdp(Extent replicas, Extent shards) {
  return Layout::mesh({replicas, shards}, {Replicate{}, Shard{0}});
}

Topology disjoint(int targets) {  // no target is colocated with a source
  Topology topology;
  topology.colocated.assign(static_cast<std::size_t>(targets), -1);
  return topology;
}

std::map<Rank, ByteCount> egress_of(const JobTotals& totals) {
  std::map<Rank, ByteCount> egress;
  for (const Flow& flow : totals.flows) egress[flow.source] += flow.bytes;
  return egress;
}

}  // namespace

BOOST_AUTO_TEST_CASE(many_readers_of_one_box_share_out_its_holders) {
  // 32 new ranks read a tensor that 8 ranks hold whole: the first holder must not serve them all.
  Planner planner(side(8, Layout::replicated()), side(32, Layout::chunk(0, 32)), disjoint(32));
  for (const auto& [source, bytes] : egress_of(planner.totals())) BOOST_TEST(bytes == whole / 8);
  Planner copies(side(8, Layout::replicated()), side(32, Layout::replicated()), disjoint(32));
  const auto egress = egress_of(copies.totals());
  BOOST_TEST(egress.size() == 8U);
  for (const auto& [source, bytes] : egress) BOOST_TEST(bytes == 4 * whole);
}

BOOST_AUTO_TEST_CASE(a_large_piece_is_read_from_several_holders_at_once) {
  Planner planner(side(4, Layout::replicated()), side(1, Layout::replicated()), disjoint(1));
  const Plan plan = planner.plan(Rank{0});
  BOOST_TEST(plan.pieces.size() == 1U);
  const Schedule schedule = planner.schedule(plan);
  BOOST_TEST(schedule.items.size() == 4U);
  BOOST_TEST(covers_exactly(Box::whole(shape), schedule.regions));
  for (const auto& [source, bytes] : egress_of(planner.totals())) BOOST_TEST(bytes == whole / 4);
}

BOOST_AUTO_TEST_CASE(a_copy_of_a_rank_is_one_of_its_replicas) {
  JobLayout from = side(2, Layout::chunk(0, 2));
  from.copies = {Rank{1}, Rank{1}};
  BOOST_TEST(from.holders() == 4);
  BOOST_TEST((from.rank_of(Rank{0}) == Rank{0} && from.rank_of(Rank{3}) == Rank{1}));
  Planner planner(from, side(1, Layout::replicated()), disjoint(1));
  const Plan plan = planner.plan(Rank{0});
  BOOST_TEST(plan.gaps.empty());
  BOOST_REQUIRE(plan.pieces.size() == 2U);
  BOOST_TEST((plan.holder_sets[plan.pieces[0].holders] == std::vector<Rank>{Rank{0}}));
  BOOST_TEST((plan.holder_sets[plan.pieces[1].holders] == std::vector<Rank>{Rank{1}, Rank{2}, Rank{3}}));
  const auto egress = egress_of(planner.totals());
  BOOST_TEST(egress.at(Rank{0}) == whole / 2);
  for (const int holder : {1, 2, 3}) {
    BOOST_TEST(egress.at(Rank{holder}) <= whole / 6 + 4096U * item);
    ByteCount delivered = 0;
    for (const Delivery& one : planner.deliveries(Rank{holder})) {
      delivered += static_cast<ByteCount>(one.box.volume()) * item;
    }
    BOOST_TEST(delivered == egress.at(Rank{holder}));
  }
  // The rank and one copy are lost: the other copy delivers.
  const std::vector<Rank> lost{Rank{1}, Rank{3}};
  for (const ScheduledPiece& part : planner.schedule(plan, lost).items) {
    BOOST_TEST((part.source == (plan.box(plan.pieces[part.piece]).offset[0] == 0 ? Rank{0} : Rank{2})));
  }
  BOOST_CHECK_EXCEPTION((void)planner.schedule(plan, std::vector<Rank>{Rank{1}, Rank{2}, Rank{3}}), Error,
                        [](const Error& error) { return error.gaps().size() == 1; });
}

BOOST_AUTO_TEST_CASE(a_copy_in_the_readers_process_is_read_first_and_replicas_first_reads_the_rank_itself) {
  JobLayout from = side(2, Layout::chunk(0, 2));
  from.copies = {Rank{0}};
  const Topology beside_the_copy{.colocated = {2}};
  Planner spread(from, side(1, Layout::replicated()), beside_the_copy);
  BOOST_TEST(spread.totals().local == whole / 2);
  Planner first(from, side(1, Layout::replicated()), beside_the_copy, Replicas::first);
  for (const ScheduledPiece& part : first.schedule(first.plan(Rank{0})).items) BOOST_TEST(to_int(part.source) < 2);
}

BOOST_AUTO_TEST_CASE(a_copy_takes_the_place_of_its_lost_rank) {
  JobLayout from = side(3, Layout::chunk(0, 3));
  from.copies = {Rank{1}, Rank{0}, Rank{1}};
  const JobLayout rest = from.without(std::vector<Rank>{Rank{1}, Rank{2}, Rank{4}});  // 4: the copy of rank 0
  BOOST_TEST((rest.sections[0].ranks == std::vector<Rank>{Rank{0}, Rank{1}}));
  BOOST_TEST((rest.copies == std::vector<Rank>{Rank{1}}));
  BOOST_TEST(from.without({}).copies.size() == 3U);
}

BOOST_AUTO_TEST_CASE(copies_of_ranks_that_are_not_there_and_copies_of_targets_are_refused) {
  JobLayout from = side(2, Layout::chunk(0, 2));
  from.copies = {Rank{2}};
  const auto is_invalid = [](const Error& error) { return error.code() == ErrorCode::invalid_argument; };
  BOOST_CHECK_EXCEPTION(Planner(from, side(1, Layout::replicated())), Error, is_invalid);
  JobLayout to = side(1, Layout::replicated());
  to.copies = {Rank{0}};
  BOOST_CHECK_EXCEPTION(Planner(side(2, Layout::chunk(0, 2)), to), Error, is_invalid);
}

BOOST_AUTO_TEST_CASE(a_small_piece_is_not_split) {
  const Extents small{64, 64};
  Planner planner(side(4, Layout::replicated(), small), side(2, Layout::chunk(0, 2), small), disjoint(2));
  for (int target = 0; target < 2; ++target) {
    BOOST_TEST(planner.schedule(planner.plan(Rank{target})).items.size() == 1U);
  }
  BOOST_TEST(egress_of(planner.totals()).size() == 2U);  // each target reads from another source
}

BOOST_AUTO_TEST_CASE(readers_that_hold_the_box_leave_their_part_to_others) {
  // Ranks 0..7 keep their layout rank; each of 4 shards has 2 holders and, of 16 new ranks, 4 readers except those that
  // hold it.
  Planner planner(side(8, hsdp(2, 4)), side(16, Layout::chunk(0, 16)));
  const JobTotals totals = planner.totals();
  std::map<Rank, ByteCount> egress;
  for (const Flow& flow : totals.flows) {
    if (flow.source != flow.target) egress[flow.source] += flow.bytes;
  }
  ByteCount most = 0;
  for (const auto& [source, bytes] : egress) most = std::max(most, bytes);
  BOOST_TEST(most <= 2 * whole / 16);  // 4 readers for 2 holders
  BOOST_TEST(totals.max_egress == most);
}

BOOST_AUTO_TEST_CASE(a_lost_replica_leaves_its_load_to_the_others) {
  const std::vector<Rank> lost{Rank{1}, Rank{6}};
  Planner planner(side(12, hsdp(3, 4)), side(24, Layout::chunk(0, 24)), disjoint(24));
  const auto egress = egress_of(planner.totals(lost));
  BOOST_TEST(!egress.contains(Rank{1}));
  BOOST_TEST(!egress.contains(Rank{6}));
  // Shards 1 and 2 have two holders left, 0 and 3 all three.
  for (const auto& [source, bytes] : egress) {
    const ByteCount shard = whole / 4;
    const int of = to_int(source) % 4;
    const ByteCount fair = of == 1 || of == 2 ? shard / 2 : shard / 3;
    BOOST_TEST(bytes <= fair * 1.05);
  }
}

BOOST_AUTO_TEST_CASE(a_holder_on_the_same_host_is_preferred) {
  Topology topology = disjoint(8);
  for (int rank = 0; rank < 8; ++rank) {
    topology.source_host.push_back(rank / 4);
    topology.target_host.push_back(rank < 6 ? rank / 3 : 7);  // the last two have no source on their host
  }
  Planner planner(side(8, hsdp(2, 4)), side(8, Layout::chunk(0, 8)), topology);
  for (const Flow& flow : planner.totals().flows) {
    const int host = topology.target_host[static_cast<std::size_t>(to_int(flow.target))];
    if (host != 7) BOOST_TEST(topology.source_host[static_cast<std::size_t>(to_int(flow.source))] == host);
  }
}

BOOST_AUTO_TEST_CASE(a_target_takes_what_lies_in_its_own_process) {
  Topology topology;
  topology.colocated = {3, -1, 0, 1};
  Planner planner(side(4, Layout::replicated()), side(4, Layout::chunk(0, 4)), topology);
  const JobTotals totals = planner.totals();
  BOOST_TEST(totals.local == 3 * whole / 4);
  BOOST_TEST(totals.remote == whole / 4);
  for (const Flow& flow : totals.flows) {
    if (flow.target == Rank{0}) BOOST_TEST((flow.source == Rank{3}));
  }
  Topology wrong = topology;
  wrong.colocated = {0};
  BOOST_CHECK_THROW(Planner(side(4, Layout::replicated()), side(4, Layout::chunk(0, 4)), wrong), Error);
  wrong.colocated = {4, 0, 0, 0};
  BOOST_CHECK_THROW(Planner(side(4, Layout::replicated()), side(4, Layout::chunk(0, 4)), wrong), Error);
}

BOOST_AUTO_TEST_CASE(a_source_sees_who_reads_from_it) {
  const JobLayout from = side(4, hsdp(2, 2));
  const JobLayout to = side(3, Layout::chunk(0, 3));
  ByteCount seen = 0;
  for (int source = 0; source < 4; ++source) {
    for (const Delivery& delivery : plan_for_source(from, to, Rank{source})) {
      BOOST_TEST(to_index(delivery.held) == 0U);
      BOOST_TEST(to_index(delivery.wanted) == 0U);
      seen += static_cast<ByteCount>(delivery.box.volume()) * item;
    }
  }
  BOOST_TEST(seen == whole);
  BOOST_CHECK_THROW(plan_for_source(from, to, Rank{4}), Error);
}

BOOST_AUTO_TEST_CASE(boxes_too_small_to_split_are_read_from_different_holders) {
  std::map<Rank, std::vector<Box>> boxes;
  for (int holder = 0; holder < 4; ++holder) {
    for (Extent row = 0; row < 64; ++row) boxes[Rank{holder}].push_back(Box{{row, 0}, {1, 16}});
  }
  const Extents rows{64, 16};
  Planner planner(side(4, Layout::boxes(boxes), rows), side(1, Layout::replicated(), rows), disjoint(1));
  const auto egress = egress_of(planner.totals());
  BOOST_TEST(egress.size() == 4U);
  for (const auto& [source, bytes] : egress) BOOST_TEST(bytes < 2 * 64 * 16 * item / 4);
}

BOOST_AUTO_TEST_CASE(targets_begin_with_different_sources) {
  Planner planner(side(4, Layout::chunk(0, 4)), side(4, Layout::chunk(1, 4)), disjoint(4));
  std::set<Rank> first;
  for (int target = 0; target < 4; ++target) {
    const Schedule schedule = planner.schedule(planner.plan(Rank{target}));
    BOOST_TEST_REQUIRE(schedule.items.size() == 4U);
    first.insert(schedule.items.front().source);
  }
  BOOST_TEST(first.size() == 4U);
}

// --- Replicas::first ---

namespace {

// Held boxes that overlap in part, by rank; sorted by neither size nor place.
const std::map<Rank, std::vector<Box>> uneven{{Rank{0}, {Box{{2, 0}, {3, 8}}}},
                                              {Rank{1}, {Box{{0, 0}, {8, 4}}}},
                                              {Rank{2}, {Box{{0, 0}, {8, 8}}}},
                                              {Rank{3}, {Box{{0, 2}, {4, 6}}}}};
const Extents small{8, 8};

Rank lowest_holder_of(const Box& element) {
  for (const auto& [rank, boxes] : uneven) {
    for (const Box& box : boxes) {
      if (contains(box, element)) return rank;
    }
  }
  throw std::logic_error("every element has a holder");
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_reader_takes_an_element_from_the_lowest_rank_that_holds_it) {
  for (const Layout& wanted : {Layout::replicated(), Layout::chunk(0, 3), Layout::chunk(1, 3)}) {
    Planner planner(side(4, Layout::boxes(uneven), small), side(3, wanted, small), {}, Replicas::first);
    for (int target = 0; target < 3; ++target) {
      const Plan plan = planner.plan(Rank{target});
      const Schedule schedule = planner.schedule(plan);
      for (const ScheduledPiece& part : schedule.items) {
        const Box& box = schedule.box(part);
        for (Extent row = box.lower(0); row < box.upper(0); ++row) {
          for (Extent column = box.lower(1); column < box.upper(1); ++column) {
            BOOST_TEST((part.source == lowest_holder_of(Box{{row, column}, {1, 1}})));
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_tensor_that_all_hold_comes_from_the_first_that_is_left) {
  // Every target is colocated with a holder, and does not read from it.
  Planner planner(side(4, Layout::replicated()), side(4, Layout::replicated()), {}, Replicas::first);
  const Plan plan = planner.plan(Rank{3});
  const auto sources = [&](const std::vector<Rank>& lost) {
    std::set<Rank> all;
    for (const ScheduledPiece& part : planner.schedule(plan, lost).items) all.insert(part.source);
    return all;
  };
  BOOST_TEST((sources({}) == std::set<Rank>{Rank{0}}));
  BOOST_TEST((sources({Rank{0}, Rank{1}}) == std::set<Rank>{Rank{2}}));
  BOOST_TEST(planner.totals().local == whole);  // of target 0
}

BOOST_AUTO_TEST_CASE(groups_of_replicas_are_not_mixed) {
  Planner planner(side(8, hsdp(2, 4)), side(3, Layout::chunk(0, 3)), {}, Replicas::first);
  for (const Flow& flow : planner.totals().flows) BOOST_TEST(to_int(flow.source) < 4);
}

BOOST_AUTO_TEST_CASE(sources_know_the_readers_of_the_first_replica) {
  Planner planner(side(4, Layout::replicated()), side(3, Layout::chunk(0, 3)), {}, Replicas::first);
  BOOST_TEST(planner.deliveries(Rank{0}).size() == 3U);
  BOOST_TEST(planner.deliveries(Rank{1}).empty());
}

BOOST_AUTO_TEST_CASE(a_job_with_gaps_has_no_totals) {
  Planner planner(side(2, Layout::chunk(0, 2)), side(2, Layout::replicated()));
  const std::vector<Rank> lost{Rank{1}};
  BOOST_CHECK_EXCEPTION(static_cast<void>(planner.totals(lost)), Error, [](const Error& error) {
    return error.gaps().size() == 2 && std::string(error.what()).find("[2048:4096, 0:512]") != std::string::npos;
  });
}

BOOST_AUTO_TEST_SUITE_END()
