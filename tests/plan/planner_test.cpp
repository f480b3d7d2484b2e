// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "geometry/overlap.hpp"
#include "shardwire/plan.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(planner)

using namespace shardwire;
using test::refused;

namespace {

TensorLayout tensor(const Extents& shape, const Layout& layout, const char* fqn = "w", DType dtype = DType::f32) {
  return {{{fqn, "exp_avg"}, dtype, shape}, layout};
}

JobLayout job(int ranks, std::vector<TensorLayout> tensors) {
  return JobLayout::uniform(ranks, std::move(tensors));
}

std::vector<Rank> ranks(int first, int last) {
  std::vector<Rank> list;
  for (int rank = first; rank < last; ++rank) list.push_back(Rank{rank});
  return list;
}

Section section(int job_ranks, std::vector<Rank> members, std::vector<TensorLayout> tensors) {
  return {std::make_shared<const Manifest>(Manifest{job_ranks, std::move(tensors)}), std::move(members)};
}

void mismatch(const std::string& part, const JobLayout& from, const JobLayout& to) {
  refused(ErrorCode::layout_mismatch, part, [&] { Planner(from, to); });
}

void invalid(const std::string& part, const JobLayout& from, const JobLayout& to) {
  refused(ErrorCode::invalid_argument, part, [&] { Planner(from, to); });
}

using Shown = std::tuple<TensorKey, Rank, Box>;

std::vector<Shown> shown(Planner& planner, Rank target) {
  std::vector<Shown> list;
  planner.each_transfer(std::span(&target, 1), [&](const PlannedTransfer& transfer) {
    list.emplace_back(transfer.tensor.key, transfer.source, transfer.box);
  });
  return list;
}

std::vector<Shown> scheduled(Planner& planner, Rank target) {
  Plan plan = planner.plan(target);
  plan.gaps.clear();
  const Schedule schedule = planner.schedule(plan);
  std::vector<Shown> list;
  for (const ScheduledPiece& item : schedule.items) {
    const TensorSpec& spec = plan.wanted->tensors[to_index(plan.pieces[item.piece].tensor)].spec;
    list.emplace_back(spec.key, item.source, schedule.box(item));
  }
  return list;
}

std::vector<Box> boxes_of(const Plan& plan) {
  std::vector<Box> boxes;
  for (const Piece& piece : plan.pieces) boxes.push_back(plan.box(piece));
  return boxes;
}

}  // namespace

BOOST_AUTO_TEST_CASE(pieces_come_by_tensor_then_box_then_offset) {
  const Layout to = Layout::boxes({{Rank{0}, {{{6}, {4}}, {{0}, {5}}}}});
  Planner planner(job(3, {tensor({10}, Layout::chunk(0, 3), "a"), tensor({10}, Layout::chunk(0, 3), "b")}),
                  job(1, {tensor({10}, to, "b"), tensor({10}, to, "a")}));
  const Plan plan = planner.plan(Rank{0});
  const std::vector<Box> once{{{6}, {2}}, {{8}, {2}}, {{0}, {4}}, {{4}, {1}}};
  BOOST_REQUIRE(plan.pieces.size() == 8U);
  for (std::size_t i = 0; i < 8; ++i) {
    BOOST_TEST(to_index(plan.pieces[i].tensor) == i / 4);
    BOOST_TEST((plan.box(plan.pieces[i]) == once[i % 4]));
  }
  const Schedule schedule = planner.schedule(plan);
  for (const ScheduledPiece& item : schedule.items) BOOST_TEST(to_index(item.held) == (item.piece < 4 ? 1U : 0U));
}

BOOST_AUTO_TEST_CASE(one_element_and_empty_tensors_are_no_pieces) {
  const Layout whole = Layout::replicated();
  const Layout columns = Layout::chunk(1, 2);
  Planner planner(
      job(2, {tensor({}, whole, "a"), tensor({1, 1}, columns, "b"), tensor({0, 4}, Layout::chunk(0, 2), "c")}),
      job(2, {tensor({}, whole, "a"), tensor({1, 1}, whole, "b"), tensor({0, 4}, columns, "c"),
              tensor({1}, whole, "nobody has it")}));
  const Plan plan = planner.plan(Rank{1});
  BOOST_TEST(plan.pieces.empty());
  BOOST_TEST(plan.gaps.empty());
  BOOST_TEST(planner.schedule(plan).items.empty());
}

BOOST_AUTO_TEST_CASE(layouts_of_one_element_tensors_are_checked_like_others) {
  const auto refused = [](const Extents& shape, const Layout& layout) {
    BOOST_CHECK_EXCEPTION(Planner(job(2, {tensor(shape, layout, "a")}), job(2, {})), Error,
                          [](const Error& error) { return error.code() == ErrorCode::layout_mismatch; });
  };
  refused({}, Layout::chunk(0, 2));
  refused({1}, Layout::chunk(5, 2));
  refused({1}, Layout::chunk(0, 99));
}

BOOST_AUTO_TEST_CASE(what_a_rank_has_it_does_not_fetch) {
  // Ranks 0 and 1 hold overlapping parts: [0:6] and [4:10]. Rank 1 keeps all of its part.
  const Layout from = Layout::boxes({{Rank{0}, {{{0}, {6}}}}, {Rank{1}, {{{4}, {6}}}}});
  Planner planner(job(2, {tensor({10}, from)}), job(2, {tensor({10}, Layout::replicated())}));
  const auto expect = [&](int target, const std::vector<Box>& boxes) {
    const Plan plan = planner.plan(Rank{target});
    BOOST_TEST((boxes_of(plan) == boxes));
    for (const ScheduledPiece& item : planner.schedule(plan).items) {
      const bool own = contains(from.boxes_of({10}, Rank{target})[0].box, plan.box(plan.pieces[item.piece]));
      BOOST_TEST(own == (item.source == plan.target));
    }
  };
  expect(0, {{{0}, {6}}, {{6}, {4}}});
  expect(1, {{{0}, {4}}, {{4}, {6}}});
}

BOOST_AUTO_TEST_CASE(replicas_cut_otherwise_are_holders_where_they_hold_the_whole_piece) {
  const Layout from = Layout::boxes({{Rank{0}, {{{0}, {8}}}}, {Rank{1}, {{{2}, {3}}}}, {Rank{2}, {{{6}, {4}}}}});
  Planner planner(job(3, {tensor({10}, from)}), job(9, {tensor({10}, Layout::boxes({{Rank{8}, {{{3}, {7}}}}}))}));
  const Plan plan = planner.plan(Rank{8});
  BOOST_TEST((boxes_of(plan) == std::vector<Box>{{{3}, {5}}, {{8}, {2}}}));
  BOOST_TEST((plan.holder_sets[plan.pieces[0].holders] == ranks(0, 1)));
  BOOST_TEST((plan.holder_sets[plan.pieces[1].holders] == ranks(2, 3)));
}

BOOST_AUTO_TEST_CASE(all_gaps_are_reported) {
  const Layout from = Layout::boxes({{Rank{0}, {{{0, 0}, {4, 2}}}}, {Rank{1}, {{{1, 3}, {2, 1}}}}});
  Planner planner(job(2, {tensor({4, 4}, from)}),
                  job(2, {tensor({4, 4}, Layout::replicated()), tensor({6}, Layout::chunk(0, 2), "lost")}));
  const Plan plan = planner.plan(Rank{1});
  std::vector<Box> all = boxes_of(plan);
  for (const Gap& gap : plan.gaps) {
    if (gap.fqn == "w") all.push_back(gap.box);
  }
  BOOST_TEST(covers_exactly(Box::whole({4, 4}), all));
  BOOST_TEST(plan.pieces.size() == 2U);
  BOOST_TEST((plan.gaps.back() == Gap{"lost", "exp_avg", {{3}, {3}}, Rank{1}}));
  refused(ErrorCode::layout_mismatch, "lost:exp_avg [3:6] for rank 1", [&] {
    Plan only = plan;
    only.gaps = {plan.gaps.back()};
    static_cast<void>(planner.schedule(only));
  });
  try {
    static_cast<void>(planner.schedule(plan));
    BOOST_ERROR("a plan with gaps was scheduled");
  } catch (const Error& error) {
    BOOST_TEST((error.gaps() == plan.gaps));
  }
}

BOOST_AUTO_TEST_CASE(a_long_list_of_gaps_is_counted) {
  std::vector<Gap> gaps;
  for (int i = 0; i < 10; ++i) gaps.push_back({"w", "master", {{i}, {1}}, Rank{i}});
  refused(ErrorCode::layout_mismatch, "10 wanted regions have no holder: w:master [0:1] for rank 0; ",
          [&] { require_no_gaps(gaps); });
  refused(ErrorCode::layout_mismatch, "; and 7 more", [&] { require_no_gaps(gaps); });
  require_no_gaps({});
}

BOOST_AUTO_TEST_CASE(sections_hold_a_tensor_each_in_its_own_way) {
  // Two pipeline stages that both have the tensor (tied embeddings), the second one columns.
  const Layout rows = Layout::mesh({2}, {Shard{0}}, MeshOrder::mesh, ranks(0, 2));
  const Layout columns = Layout::mesh({2}, {Shard{1}}, MeshOrder::mesh, ranks(2, 4));
  JobLayout from{4,
                 {section(4, ranks(0, 2), {tensor({4, 4}, rows)}),
                  section(4, ranks(2, 4), {tensor({8}, columns, "other", DType::u8), tensor({4, 4}, columns)})}};
  from.sections[1].manifest =
      section(4, {}, {tensor({8}, Layout::replicated(), "other"), tensor({4, 4}, columns)}).manifest;
  Planner planner(from, job(4, {tensor({4, 4}, columns)}));
  const Plan plan = planner.plan(Rank{3});
  BOOST_TEST((boxes_of(plan) == std::vector<Box>{{{0, 2}, {4, 2}}}));
  const Schedule schedule = planner.schedule(plan);
  BOOST_TEST(to_int(schedule.items[0].source) == 3);
  BOOST_TEST(schedule.items[0].section == 1U);
  BOOST_TEST(to_index(schedule.items[0].held) == 1U);
  // Without that rank, the plan uses the rows of the other stage.
  const Rank lost[] = {Rank{3}};
  Planner again(from.without(lost), planner.to());
  BOOST_TEST((boxes_of(again.plan(Rank{3})) == std::vector<Box>{{{0, 2}, {2, 2}}, {{2, 2}, {2, 2}}}));
  BOOST_TEST(again.plan(Rank{0}).wanted.get() == planner.to().sections[0].manifest.get());
}

BOOST_AUTO_TEST_CASE(a_rank_outside_all_sections_wants_nothing) {
  Planner planner(job(2, {tensor({4}, Layout::replicated())}),
                  {3, {section(3, ranks(1, 2), {tensor({4}, Layout::replicated())})}});
  BOOST_TEST((planner.plan(Rank{0}).wanted == nullptr));
  BOOST_TEST(planner.plan(Rank{1}).pieces.size() == 1U);
  BOOST_TEST(planner.schedule(planner.plan(Rank{0})).items.empty());
  refused(ErrorCode::invalid_argument, "target rank 3 is out of range 0..2",
          [&] { static_cast<void>(planner.plan(Rank{3})); });
  refused(ErrorCode::invalid_argument, "target rank -1 is out of range 0..2",
          [&] { static_cast<void>(planner.plan(Rank{-1})); });
}

BOOST_AUTO_TEST_CASE(sides_that_disagree_are_refused_with_both_values) {
  const Layout all = Layout::replicated();
  mismatch("w:exp_avg is f32 (4, 4) and bf16 (4, 4) on the source and the target side", job(1, {tensor({4, 4}, all)}),
           job(1, {tensor({4, 4}, all, "w", DType::bf16)}));
  mismatch("f32 (4,) and f32 (4, 1)", job(1, {tensor({4}, all)}), job(1, {tensor({4, 1}, all)}));
  mismatch("f32 () and f32 (1,)", job(1, {tensor({}, all)}), job(1, {tensor({1}, all)}));
  const JobLayout two{2, {section(2, ranks(0, 1), {tensor({4}, all)}), section(2, ranks(1, 2), {tensor({5}, all)})}};
  mismatch("f32 (4,) and f32 (5,) in sections 0 and 1 of the source side", two, job(1, {}));
  mismatch("of the target side", job(1, {}), two);
  mismatch("tensor w:exp_avg: chunk(dim 1, over 2) names dim 1", job(2, {tensor({4}, Layout::chunk(1, 2))}),
           job(1, {}));
  mismatch("needs 3 ranks, there are 2", job(1, {}), job(2, {tensor({4}, Layout::chunk(0, 3))}));
  mismatch("is negative", job(1, {tensor({-1, -1}, all)}), job(1, {}));
}

BOOST_AUTO_TEST_CASE(a_side_that_makes_no_sense_is_refused) {
  const std::vector<TensorLayout> one{tensor({4}, Layout::replicated())};
  const JobLayout none = job(1, {});
  invalid("the source side: rank 1 is in sections 0 and 1",
          {3, {section(3, ranks(0, 2), one), section(3, ranks(1, 3), {})}}, none);
  invalid("section 0 names rank 3 of 3", {3, {section(3, ranks(0, 4), one)}}, none);
  invalid("names rank 0 after rank 1", {3, {section(3, {Rank{1}, Rank{0}}, one)}}, none);
  invalid("the target side: section 0 has no manifest", none, {3, {Section{nullptr, {}}}});
  invalid("w:exp_avg stands twice in section 0", none, job(1, {one[0], one[0]}));
}

BOOST_AUTO_TEST_CASE(equal_layouts_may_be_many_objects) {
  std::vector<TensorLayout> held;
  std::vector<TensorLayout> wanted;
  const std::vector<std::string> names{"a", "b", "c", "d"};
  for (const std::string& name : names) {
    held.push_back(tensor({9, 4}, Layout::chunk(0, 4), name.c_str()));
    wanted.push_back(tensor({9, 4}, Layout::chunk(1, 2), name.c_str()));
  }
  const Plan plan = shardwire::plan(job(4, held), job(2, wanted), Rank{1});
  BOOST_TEST(plan.pieces.size() == 12U);
  BOOST_TEST(plan.holder_sets.size() == 3U);  // one class: the sets are not repeated per tensor
}

BOOST_AUTO_TEST_CASE(sums_beyond_64_bits_are_refused) {
  const Extents shape{Extent{1} << 60};
  Planner planner(job(1, {tensor(shape, Layout::replicated())}), job(16, {tensor(shape, Layout::replicated())}));
  refused(ErrorCode::invalid_argument, "the sum over all target ranks overflows",
          [&] { static_cast<void>(planner.totals()); });
}

BOOST_AUTO_TEST_CASE(tensors_beyond_31_and_40_bits_are_planned) {
  for (const Extent rows : {(Extent{1} << 31) + 11, (Extent{1} << 41) + 5}) {
    const Extents shape{rows, 3};
    Planner planner(job(7, {tensor(shape, Layout::chunk(0, 7))}), job(5, {tensor(shape, Layout::chunk(0, 5))}));
    std::vector<Box> all;
    for (int target = 0; target < 5; ++target) {
      const Plan plan = planner.plan(Rank{target});
      BOOST_TEST(plan.gaps.empty());
      for (const Box& box : boxes_of(plan)) all.push_back(box);
      BOOST_TEST(planner.schedule(plan).items.size() == plan.pieces.size());
    }
    BOOST_TEST(all.size() == 11U);
    BOOST_TEST(covers_exactly(Box::whole(shape), all));
  }
}

BOOST_AUTO_TEST_CASE(readers_of_replicas_spread_over_them) {
  // 4 replicas of 4 shards; 16 new ranks, none of which holds anything.
  std::vector<TensorLayout> held;
  std::vector<TensorLayout> wanted;
  for (int layer = 0; layer < 12; ++layer) {
    const std::string name(static_cast<std::size_t>(layer) + 1, 'w');
    const Extents shape{layer % 3 == 0 ? 4096 : 1024, 64};
    held.push_back(tensor(shape, Layout::mesh({4, 4}, {Replicate{}, Shard{0}}), name.c_str()));
    wanted.push_back(tensor(shape, Layout::mesh({16}, {Shard{0}}, MeshOrder::mesh, ranks(16, 32)), name.c_str()));
  }
  Planner planner(job(16, held), job(32, wanted));
  std::map<Rank, ElementCount> load;
  std::map<Rank, int> first;
  ElementCount total = 0;
  for (int target = 16; target < 32; ++target) {
    const Plan plan = planner.plan(Rank{target});
    const Schedule schedule = planner.schedule(plan);
    ++first[schedule.items.front().source];
    for (const ScheduledPiece& item : schedule.items) {
      load[item.source] += schedule.box(item).volume();
      total += schedule.box(item).volume();
    }
    const Schedule again = planner.schedule(planner.plan(Rank{target}));
    for (std::size_t i = 0; i < again.items.size(); ++i) {
      BOOST_TEST(
          (again.items[i].piece == schedule.items[i].piece && again.items[i].source == schedule.items[i].source));
    }
  }
  BOOST_TEST(load.size() == 16U);
  for (const auto& [rank, elements] : load) BOOST_TEST(elements * 16 <= total * 1.05);
  BOOST_TEST(first.size() >= 8U);
}

BOOST_AUTO_TEST_CASE(a_lost_holder_is_replaced_without_a_new_plan) {
  const Layout hsdp = Layout::mesh({2, 2}, {Replicate{}, Shard{0}});
  Planner planner(job(4, {tensor({8}, hsdp)}), job(4, {tensor({8}, Layout::replicated())}));
  const Plan plan = planner.plan(Rank{0});
  for (const Rank lost : ranks(0, 4)) {
    for (const ScheduledPiece& item : planner.schedule(plan, std::span(&lost, 1)).items)
      BOOST_TEST((item.source != lost));
  }
  const std::vector<Rank> both{Rank{1}, Rank{3}};
  refused(ErrorCode::layout_mismatch, "a wanted region has no holder: w:exp_avg [4:8] for rank 0",
          [&] { static_cast<void>(planner.schedule(plan, both)); });
}

// More boxes than are split together.
BOOST_AUTO_TEST_CASE(many_boxes_are_listed_as_they_are_scheduled) {
  const Extents shape{120, 130};
  for (const Layout& held : {Layout::block_cyclic({1, 1}, {4, 3}), Layout::block_cyclic({1, 2}, {4, 3}),
                             Layout::mesh({2, 6}, {Replicate{}, StridedShard{1, 20}})}) {
    Planner planner(job(12, {tensor(shape, held, "a"), tensor(shape, held, "b")}),
                    job(14, {tensor(shape, Layout::mesh({2, 7}, {Replicate{}, Shard{0}}), "a"),
                             tensor(shape, Layout::replicated(), "b")}));
    for (const Rank target : {Rank{0}, Rank{5}, Rank{13}}) {
      const std::vector<Shown> list = shown(planner, target);
      BOOST_TEST(list.size() > 100U);
      BOOST_TEST((list == scheduled(planner, target)));
      BOOST_TEST(planner.tally(std::span(&target, 1)).pieces == list.size());
    }
  }
}

BOOST_AUTO_TEST_CASE(many_boxes_that_overlap_are_listed_as_they_are_scheduled) {
  std::vector<Box> single;
  for (Extent i = 0; i < 5000; ++i) single.push_back({{i}, {1}});
  const Layout held = Layout::boxes({{Rank{0}, single}, {Rank{1}, {{{1000}, {6}}, {{4500}, {1500}}}}});
  Planner planner(job(2, {tensor({6000}, held)}), job(3, {tensor({6000}, Layout::replicated())}));
  for (const auto& [target, pieces] : {std::pair(Rank{0}, 5001U), {Rank{1}, 4496U}, {Rank{2}, 4496U}}) {
    const std::vector<Shown> list = shown(planner, target);
    BOOST_TEST(list.size() == pieces);
    BOOST_TEST((list == scheduled(planner, target)));
    BOOST_TEST(planner.tally(std::span(&target, 1)).pieces == list.size());
  }
}

BOOST_AUTO_TEST_CASE(gaps_among_many_boxes_are_shown_once) {
  const Extents shape{6000, 2};
  std::vector<Box> held;  // all but every hundredth row
  for (Extent row = 0; row < 6000; ++row) {
    if (row % 100 != 99) held.push_back({{row, 0}, {1, 2}});
  }
  Planner planner(job(1, {tensor(shape, Layout::boxes({{Rank{0}, held}}))}),
                  job(2, {tensor(shape, Layout::replicated())}));
  const Rank target{1};
  std::vector<Box> all;
  std::uint64_t gaps = 0;
  planner.each_gap(std::span(&target, 1), [&](const Gap& gap) {
    ++gaps;
    all.push_back(gap.box);
    BOOST_TEST((gap.fqn == "w" && gap.state == "exp_avg" && gap.target == target));
    BOOST_TEST(gap.box.lower(0) % 100 == 99);
  });
  BOOST_TEST(gaps == 60U);
  const JobTotals totals = planner.tally(std::span(&target, 1));
  BOOST_TEST(totals.gaps == gaps);
  BOOST_TEST(totals.pieces == held.size());
  for (const auto& [key, source, box] : shown(planner, target)) all.push_back(box);
  BOOST_TEST(covers_exactly(Box::whole(shape), all));
}

BOOST_AUTO_TEST_CASE(more_pieces_than_are_put_in_order_are_listed_too) {
  const Extent rows = 100'000;
  const auto many = static_cast<int>(rows);
  Planner planner(job(many, {tensor({rows}, Layout::chunk(0, many), "a"), tensor({rows}, Layout::chunk(0, many), "b")}),
                  job(1, {tensor({rows}, Layout::replicated(), "a"), tensor({rows}, Layout::replicated(), "b")}));
  std::vector<Shown> list = shown(planner, Rank{0});
  std::sort(list.begin(), list.end());
  BOOST_REQUIRE(list.size() == static_cast<std::size_t>(2 * rows));
  for (Extent i = 0; i < 2 * rows; ++i) {
    const Extent row = i % rows;
    const Shown expected{{i < rows ? "a" : "b", "exp_avg"}, Rank{static_cast<std::int32_t>(row)}, {{row}, {1}}};
    BOOST_REQUIRE((list[static_cast<std::size_t>(i)] == expected));
  }
}

BOOST_AUTO_TEST_CASE(a_target_rank_that_is_none_is_refused) {
  Planner planner(job(2, {tensor({4}, Layout::chunk(0, 2))}), job(2, {tensor({4}, Layout::chunk(0, 2))}));
  for (const Rank target : {Rank{-1}, Rank{2}}) {
    const std::vector<Rank> only{target};
    refused(ErrorCode::invalid_argument, "0..1", [&] { static_cast<void>(planner.tally(only)); });
    refused(ErrorCode::invalid_argument, "0..1", [&] { planner.each_transfer(only, [](const PlannedTransfer&) {}); });
    refused(ErrorCode::invalid_argument, "0..1", [&] { planner.each_gap(only, [](const Gap&) {}); });
  }
}

BOOST_AUTO_TEST_SUITE_END()
