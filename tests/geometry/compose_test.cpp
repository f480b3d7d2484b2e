// SPDX-License-Identifier: Apache-2.0
// Block-cyclic layouts, layouts inside layouts, and boxes with places: worked values and refusals.
#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <string>

#include "geometry/overlap.hpp"
#include "shardwire/error.hpp"
#include "shardwire/layout.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(compose)

using namespace shardwire;
using test::refused;

namespace {

std::string held(const Layout& layout, const Extents& shape, int rank) {
  std::string text;
  for (const PlacedBox& placed : layout.boxes_of(shape, Rank{rank})) {
    text += fmt::format("{}{}@{}", text.empty() ? "" : " ", to_string(placed.box), placed.local_offset);
  }
  return text.empty() ? "-" : text;
}

void mismatch(const std::string& part, const Layout& layout, const Extents& shape, int ranks) {
  refused(ErrorCode::layout_mismatch, part, [&] { layout.check(shape, ranks); });
}
void invalid(const std::string& part, const std::function<void()>& action) {
  refused(ErrorCode::invalid_argument, part, action);
}

bool tiles(const Layout& layout, const Extents& shape, int ranks) {
  std::vector<Box> boxes;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const PlacedBox& placed : layout.boxes_of(shape, Rank{rank})) boxes.push_back(placed.box);
  }
  return covers_exactly(Box::whole(shape), boxes);
}

}  // namespace

BOOST_AUTO_TEST_CASE(blocks_are_dealt_out_in_turn) {
  const Layout layout = Layout::block_cyclic({2}, {3});
  BOOST_TEST(held(layout, {13}, 0) == "[0:2]@0 [6:8]@2 [12:13]@4");
  BOOST_TEST(held(layout, {13}, 1) == "[2:4]@0 [8:10]@2");
  BOOST_TEST(held(layout, {13}, 2) == "[4:6]@0 [10:12]@2");
  BOOST_TEST(held(layout, {13}, 3) == "-");
  BOOST_TEST(held(Layout::block_cyclic({2}, {3}, {1}), {13}, 0) == "[4:6]@0 [10:12]@2");
  BOOST_TEST(held(Layout::block_cyclic({2}, {3}, {1}), {13}, 1) == "[0:2]@0 [6:8]@2 [12:13]@4");
  BOOST_TEST(held(Layout::block_cyclic({8}, {3}), {5}, 1) == "-");
  BOOST_TEST(held(Layout::block_cyclic({2}, {1}), {5}, 0) == "[0:5]@0");  // neighbours are one interval
}

BOOST_AUTO_TEST_CASE(a_grid_is_row_major_and_its_blocks_are_products) {
  // ScaLAPACK's example of 9 x 9 in 2 x 2 blocks on a 2 x 3 grid: process (0, 0) has 5 x 4, (1, 2) has 4 x 2.
  const Layout layout = Layout::block_cyclic({2, 2}, {2, 3});
  layout.check({9, 9}, 6);
  const Extent rows[] = {5, 4};
  const Extent columns[] = {4, 3, 2};
  for (int rank = 0; rank < 6; ++rank) {
    BOOST_TEST(layout.local_elements({9, 9}, Rank{rank}) == rows[rank / 3] * columns[rank % 3]);
  }
  BOOST_TEST(tiles(layout, {9, 9}, 6));
  BOOST_TEST(held(layout, {9, 9}, 5) == "[2:4, 4:6]@0 [6:8, 4:6]@4");
  const auto boxes = layout.boxes_of({9, 9}, Rank{0});
  BOOST_REQUIRE(boxes.size() == 6U);
  BOOST_TEST((boxes[1] == PlacedBox{{{0, 6}, {2, 2}}, 2, {4, 1}}));
  BOOST_TEST((boxes[5] == PlacedBox{{{8, 6}, {1, 2}}, 18, {4, 1}}));
  BOOST_TEST(held(Layout::block_cyclic({}, {}), {}, 0) == "[]@0");
}

BOOST_AUTO_TEST_CASE(what_is_no_block_cyclic_layout_is_refused) {
  invalid("2 block sizes, 1 grid sizes and 2 first owners", [] { Layout::block_cyclic({1, 1}, {2}); });
  invalid("block size 0 in dim 1", [] { Layout::block_cyclic({1, 0}, {2, 2}); });
  invalid("grid size 0 in dim 0", [] { Layout::block_cyclic({1}, {0}); });
  invalid("first owner 2 in dim 0, where the grid has 2", [] { Layout::block_cyclic({1}, {2}, {2}); });
  mismatch("blockcyclic (block (2,), grid (3,)) has 1 dims, shape (4, 4) has 2", Layout::block_cyclic({2}, {3}), {4, 4},
           3);
  mismatch("needs 6 ranks, there are 5", Layout::block_cyclic({2, 2}, {2, 3}), {9, 9}, 5);
  mismatch("cuts shape (1099511627776, 4) into 274877906944 boxes on rank 3",
           Layout::block_cyclic({1, 4}, {4, 1}, {3, 0}), {Extent{1} << 40, 4}, 4);
  mismatch("boxes on rank 0", Layout::block_cyclic({1, 1}, {2, 2}), {std::numeric_limits<Extent>::max() / 2, 2}, 4);
}

BOOST_AUTO_TEST_CASE(an_inner_layout_cuts_what_an_outer_rank_holds) {
  // Outer: rows 0:2 + 4:6 and 2:4 + 6:7; inner: chunks of these 4 and 3 rows.
  const Layout layout = Layout::within(Layout::block_cyclic({2, 3}, {2, 1}), 2, Layout::chunk(0, 3));
  layout.check({7, 3}, 6);
  BOOST_TEST(held(layout, {7, 3}, 0) == "[0:2, 0:3]@0");
  BOOST_TEST(held(layout, {7, 3}, 2) == "[4:6, 0:3]@0");
  BOOST_TEST(held(layout, {7, 3}, 4) == "-");
  BOOST_TEST(held(layout, {7, 3}, 1) == "[2:3, 0:3]@0");
  BOOST_TEST(held(layout, {7, 3}, 3) == "[3:4, 0:3]@0");
  BOOST_TEST(held(layout, {7, 3}, 5) == "[6:7, 0:3]@0");
  BOOST_TEST(tiles(layout, {7, 3}, 6));
  // One inner box over two outer intervals is split, and stays one local array.
  const Layout halves = Layout::within(Layout::block_cyclic({2, 3}, {2, 1}), 2, Layout::chunk(1, 2));
  BOOST_TEST(held(halves, {7, 3}, 0) == "[0:2, 0:2]@0 [4:6, 0:2]@4");
  BOOST_TEST(held(halves, {7, 3}, 3) == "[2:4, 2:3]@0 [6:7, 2:3]@2");
}

BOOST_AUTO_TEST_CASE(fsdp_over_tp_is_a_chunk_within_a_chunk) {
  const Layout mesh = Layout::mesh({3, 2}, {StridedShard{0, 2}, Shard{0}}, MeshOrder::tp_first);
  const Layout composed = Layout::within(Layout::chunk(0, 2), 2, Layout::chunk(0, 3));
  for (const Extent n : {1, 5, 7, 12, 18, 23}) {
    for (int rank = 0; rank < 6; ++rank) {
      BOOST_TEST((mesh.boxes_of({n, 4}, Rank{rank}) == composed.boxes_of({n, 4}, Rank{rank})));
    }
  }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_composed_is_refused) {
  const Layout rows = Layout::chunk(0, 2);
  invalid("a boxes layout cannot be the outer one", [&] { Layout::within(Layout::boxes({}), 2, rows); });
  invalid("a flat layout cannot be the outer one",
          [&] { Layout::within(Layout::flat(std::vector{FlatMember{{4}}}, 2)[0], 2, rows); });
  invalid("within one of 0 ranks", [&] { Layout::within(rows, 0, rows); });
  mismatch("needs 2 ranks, there are 1, in the part (2,) that rank 0 of chunk(dim 0, over 2) holds of shape (4,)",
           Layout::within(rows, 2, rows), {4}, 3);
  mismatch("chunk(dim 0, over 2) needs 2 ranks, there are 1", Layout::within(rows, 1, rows), {4}, 4);
  mismatch("leaves shape (1,) in dim 0, in the part (1,) that rank 1",
           Layout::within(rows, 2, Layout::boxes({{Rank{0}, {{{0}, {2}}}}})), {3}, 4);
  const Layout fine = Layout::block_cyclic({1, 1}, {2, 2});
  mismatch("may cut shape (1024, 1024) into 68719476736 boxes on rank 0",
           Layout::within(Layout::block_cyclic({1, 1}, {2, 2}), 4, fine), {1024, 1024}, 16);
}

BOOST_AUTO_TEST_CASE(a_stage_has_the_ranks_from_its_first_one_on) {
  const Layout stage = Layout::on_ranks(Layout::replicated(), Rank{2}, 2);
  stage.check({4}, 4);
  BOOST_TEST(held(stage, {4}, 1) == "-");
  BOOST_TEST(held(stage, {4}, 2) == "[0:4]@0");
  BOOST_TEST(held(stage, {4}, 3) == "[0:4]@0");
  BOOST_TEST(held(stage, {4}, 4) == "-");
  BOOST_TEST(stage.local_elements({4}, Rank{4}) == 0);
  const Layout flat = Layout::on_ranks(Layout::flat(std::vector{FlatMember{{5}}}, 2)[0], Rank{2}, 2);
  BOOST_TEST(held(flat, {5}, 3) == "[3:5]@0");
  BOOST_TEST(flat.local_elements({5}, Rank{3}) == 3);
  mismatch("replicated on 2 ranks from rank 2 needs 4 ranks, there are 3", stage, {4}, 3);
  mismatch("chunk(dim 0, over 3) needs 3 ranks, there are 2", Layout::on_ranks(Layout::chunk(0, 3), Rank{2}, 2), {4},
           9);
  invalid("a layout on 2 ranks from rank -1", [] { Layout::on_ranks(Layout::replicated(), Rank{-1}, 2); });
}

BOOST_AUTO_TEST_CASE(a_process_group_has_its_ranks_in_any_order) {
  const std::vector<Rank> group{Rank{5}, Rank{1}, Rank{3}};
  const Layout layout = Layout::on_ranks(Layout::flat(std::vector{FlatMember{{8}}}, 3)[0], group);
  layout.check({8}, 6);
  BOOST_TEST(held(layout, {8}, 5) == "[0:3]@0");
  BOOST_TEST(held(layout, {8}, 1) == "[3:6]@0");
  BOOST_TEST(held(layout, {8}, 3) == "[6:8]@0");
  for (const int rank : {0, 2, 4, 6}) {
    BOOST_TEST(held(layout, {8}, rank) == "-");
    BOOST_TEST(layout.local_elements({8}, Rank{rank}) == 0);
  }
  BOOST_TEST(layout.local_elements({8}, Rank{3}) == 3);
  mismatch("on 3 listed ranks needs 6 ranks, there are 5", layout, {8}, 5);
  mismatch("needs 4 ranks, there are 3", Layout::on_ranks(Layout::chunk(0, 4), group), {8}, 6);
}

BOOST_AUTO_TEST_CASE(every_second_rank_is_a_group) {
  const Layout layout = Layout::on_ranks(Layout::chunk(0, 3), {Rank{1}, Rank{3}, Rank{5}});
  layout.check({7}, 6);
  for (const int rank : {0, 2, 4, 6, 7}) BOOST_TEST(held(layout, {7}, rank) == "-");
  BOOST_TEST(held(layout, {7}, 1) == "[0:3]@0");
  BOOST_TEST(held(layout, {7}, 5) == "[6:7]@0");
  mismatch("on 3 ranks from rank 1 in steps of 2 needs 6 ranks, there are 5", layout, {7}, 5);
}

BOOST_AUTO_TEST_CASE(listed_ranks_that_count_up_are_a_run_of_ranks) {
  const Layout rows = Layout::chunk(0, 2);
  BOOST_TEST((Layout::on_ranks(rows, {Rank{4}, Rank{5}}) == Layout::on_ranks(rows, Rank{4}, 2)));
  BOOST_TEST((Layout::on_ranks(rows, {Rank{5}, Rank{4}}) != Layout::on_ranks(rows, Rank{4}, 2)));
  BOOST_TEST((Layout::on_ranks(rows, {Rank{4}, Rank{6}}) != Layout::on_ranks(rows, {Rank{4}, Rank{7}})));
  BOOST_TEST((Layout::on_ranks(rows, {Rank{4}}) == Layout::on_ranks(rows, Rank{4}, 1)));
  BOOST_TEST((Layout::on_ranks(rows, std::vector<Rank>()) == Layout::on_ranks(rows, Rank{0}, 0)));
}

BOOST_AUTO_TEST_CASE(a_rank_has_one_place_in_a_group) {
  const auto on = [](std::vector<Rank> ranks) { return [=] { Layout::on_ranks(Layout::chunk(0, 2), ranks); }; };
  invalid("on_ranks layout: rank 2 is at positions 0 and 2", on({Rank{2}, Rank{0}, Rank{2}}));
  invalid("on_ranks layout: rank 2 is at positions 0 and 1", on({Rank{2}, Rank{2}}));
  invalid("on_ranks layout: position 1 has rank -1", on({Rank{0}, Rank{-1}}));
}

BOOST_AUTO_TEST_CASE(packed_members_of_a_flat_parameter_count_from_zero) {
  // FSDP1 with original parameters: 14 elements on 2 ranks, a 3 x 3 weight and, aligned to 4, a bias of 2.
  const auto flat = Layout::flat(std::vector<FlatMember>{{{3, 3}}, {{2}}}, 2, 4);
  BOOST_TEST(held(flat[0], {3, 3}, 1) == "[2:3, 1:3]@0");
  BOOST_TEST(held(flat[1], {2}, 1) == "[0:2]@5");
  const Layout weight = Layout::packed(flat[0]);
  const Layout bias = Layout::packed(flat[1]);
  weight.check({3, 3}, 2);
  BOOST_TEST(held(weight, {3, 3}, 0) == "[0:2, 0:3]@0 [2:3, 0:1]@6");
  BOOST_TEST(held(weight, {3, 3}, 1) == "[2:3, 1:3]@0");
  BOOST_TEST(held(bias, {2}, 0) == "-");
  BOOST_TEST(held(bias, {2}, 1) == "[0:2]@0");
  BOOST_TEST(weight.local_elements({3, 3}, Rank{0}) == 7);
  BOOST_TEST(bias.local_elements({2}, Rank{0}) == 0);
  BOOST_TEST(bias.local_elements({2}, Rank{1}) == 2);
  mismatch("is of a tensor of shape (2,), this one has (3,)", bias, {3}, 2);
}

BOOST_AUTO_TEST_CASE(packed_boxes_lose_their_places_and_keep_their_order_of_dims) {
  const PlacedBoxMap fused{{Rank{1}, {{{{2, 0}, {2, 3}}, 18, {4, 1}}, {{{0, 0}, {2, 3}}, 6, {1, 2}}}}};
  const auto boxes = Layout::packed(Layout::boxes(fused)).boxes_of({4, 3}, Rank{1});
  BOOST_REQUIRE(boxes.size() == 2U);
  BOOST_TEST((boxes[0] == PlacedBox{{{0, 0}, {2, 3}}, 0, {1, 2}}));
  BOOST_TEST((boxes[1] == PlacedBox{{{2, 0}, {2, 3}}, 6, {3, 1}}));
  // FSDP1 flattens a transposed parameter in memory order, and its state keeps that order.
  const Layout transposed = Layout::packed(Layout::flat(std::vector{FlatMember{{2, 3}, {}, {1, 0}}}, 1)[0]);
  BOOST_TEST((transposed.boxes_of({2, 3}, Rank{0})[0] == PlacedBox{{{0, 0}, {2, 3}}, 0, {1, 2}}));
  // Boxes that interleave follow one another.
  const auto dense = Layout::packed(Layout::block_cyclic({2, 2}, {1, 2})).boxes_of({2, 6}, Rank{0});
  BOOST_REQUIRE(dense.size() == 2U);
  BOOST_TEST((dense[0] == PlacedBox{{{0, 0}, {2, 2}}, 0, {2, 1}}));
  BOOST_TEST((dense[1] == PlacedBox{{{0, 4}, {2, 2}}, 4, {2, 1}}));
}

BOOST_AUTO_TEST_CASE(a_packed_layout_is_packed_once) {
  const Layout packed = Layout::packed(Layout::chunk(0, 2));
  BOOST_TEST((Layout::packed(packed) == packed));
  BOOST_TEST(Layout::packed(packed).to_string() == "packed chunk(dim 0, over 2)");
  BOOST_TEST((packed != Layout::chunk(0, 2)));
  invalid("a packed layout cannot be the outer one", [&] { Layout::within(packed, 2, Layout::chunk(0, 2)); });
  BOOST_TEST(held(Layout::within(Layout::chunk(0, 2), 2, packed), {8}, 2) == "[2:4]@0");
}

BOOST_AUTO_TEST_CASE(hybrid_shards_are_held_by_every_replica) {
  // HSDP: two replicas of FSDP over two ranks.
  const Layout layout = Layout::mesh({2, 2}, {Replicate{}, Shard{0}});
  for (int rank = 0; rank < 4; ++rank) {
    BOOST_TEST(held(layout, {5}, rank) == (rank % 2 == 0 ? "[0:3]@0" : "[3:5]@0"));
  }
}

BOOST_AUTO_TEST_CASE(boxes_with_places_lie_where_they_say) {
  // A fused projection of 12 rows: query rows 0:2, 4:6 and 8:10 of this tensor are interleaved with rows of others.
  const PlacedBoxMap fused{{Rank{1}, {{{{2, 0}, {2, 3}}, 18, {3, 1}}, {{{0, 0}, {2, 3}}, 6, {3, 1}}}},
                           {Rank{2}, {{{{0, 0}, {4, 3}}, 5, {1, 4}}}}};
  const Layout layout = Layout::boxes(fused);
  layout.check({4, 3}, 3);
  BOOST_TEST(held(layout, {4, 3}, 1) == "[0:2, 0:3]@6 [2:4, 0:3]@18");
  BOOST_TEST(layout.local_elements({4, 3}, Rank{1}) == 24);
  BOOST_TEST(layout.local_elements({4, 3}, Rank{2}) == 17);
  BOOST_TEST((layout.boxes_of({4, 3}, Rank{2})[0] == PlacedBox{{{0, 0}, {4, 3}}, 5, {1, 4}}));
  // Places that are those of boxes back to back are no places at all.
  const PlacedBoxMap dense{{Rank{0}, {{{{0, 0}, {2, 3}}, 0, {3, 1}}, {{{2, 0}, {2, 3}}, 6, {3, 1}}}}};
  BOOST_TEST((Layout::boxes(dense) == Layout::boxes({{Rank{0}, {{{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}}}})));
  mismatch("box [2:4, 0:3] of rank 1 leaves shape (4, 2) in dim 1", layout, {4, 2}, 3);
}

BOOST_AUTO_TEST_CASE(places_that_make_no_sense_are_refused) {
  const auto place = [](ElementCount offset, const Extents& strides) {
    return [=] { Layout::boxes(PlacedBoxMap{{Rank{3}, {{{{0, 0}, {2, 3}}, offset, strides}}}}); };
  };
  constexpr Extent huge = std::numeric_limits<Extent>::max();
  invalid("box 0 of rank 3 has the local offset -1", place(-1, {3, 1}));
  invalid("box 0 of rank 3 has the local stride -3 in dim 0", place(0, {-3, 1}));
  invalid("box 0 of rank 3 has 1 local strides and 2 dims", place(0, {3}));
  invalid("box 0 of rank 3 has local strides (2, 1) for size (2, 3), which put two elements into one place",
          place(0, {2, 1}));
  invalid("two elements into one place", place(0, {3, 0}));
  invalid("a local place overflows 64 bits", place(huge, {3, 1}));
  invalid("a local place overflows 64 bits", place(0, {huge, huge}));
  invalid("a local place overflows 64 bits", place(huge - 5, {3, 1}));
  place(huge - 6, {3, 1})();
}

BOOST_AUTO_TEST_CASE(chunks_of_two_are_as_torch_cuts_them) {
  const auto both = [](const Extents& shape) {
    return held(Layout::chunk(0, 2), shape, 0) + " | " + held(Layout::chunk(0, 2), shape, 1);
  };
  BOOST_TEST(both({1}) == "[0:1]@0 | -");
  BOOST_TEST(both({1, 6}) == "[0:1, 0:6]@0 | -");
  BOOST_TEST(both({12}) == "[0:6]@0 | [6:12]@0");
  BOOST_TEST(both({12, 6}) == "[0:6, 0:6]@0 | [6:12, 0:6]@0");
  BOOST_TEST(both({25}) == "[0:13]@0 | [13:25]@0");
  BOOST_TEST(both({25, 6}) == "[0:13, 0:6]@0 | [13:25, 0:6]@0");
}

BOOST_AUTO_TEST_SUITE_END()
