// SPDX-License-Identifier: Apache-2.0
// Worked values of the layout formulas, and refusals.
#include "shardwire/layout.hpp"

#include <boost/test/unit_test.hpp>

#include <functional>
#include <limits>
#include <string>

#include "geometry/overlap.hpp"
#include "shardwire/error.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(layout)

using namespace shardwire;
using test::refused;

namespace {

/// "lower:upper" of dim 0 of each box of a rank, in local order; "-" for a rank that holds nothing.
std::string held(const Layout& layout, const Extents& shape, int rank) {
  std::string text;
  ElementCount local = 0;
  for (const PlacedBox& placed : layout.boxes_of(shape, Rank{rank})) {
    text += text.empty() ? "" : " ";
    text += to_string(Box{{placed.box.offset[0]}, {placed.box.size[0]}});
    if (shape.size() == 1) BOOST_TEST(placed.local_offset == local);  // intervals are concatenated
    local += placed.box.volume();
  }
  BOOST_TEST(layout.local_elements(shape, Rank{rank}) == local);
  return text.empty() ? "-" : text;
}

std::string all_held(const Layout& layout, const Extents& shape, int ranks) {
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank > 0) text += "; ";
    text += held(layout, shape, rank);
  }
  return text;
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

BOOST_AUTO_TEST_CASE(chunks_are_as_torch_cuts_them) {
  BOOST_TEST(all_held(Layout::chunk(0, 4), {5}, 4) == "[0:2]; [2:4]; [4:5]; -");
  BOOST_TEST(all_held(Layout::chunk(0, 8), {2}, 8) == "[0:1]; [1:2]; -; -; -; -; -; -");
  BOOST_TEST(all_held(Layout::chunk(-2, 2), {25, 3}, 2) == "[0:13]; [13:25]");
  BOOST_TEST(all_held(Layout::chunk(0, 2), {0}, 2) == "-; -");
  BOOST_TEST(held(Layout::chunk(0, 2), {4}, 2) == "-");
}

BOOST_AUTO_TEST_CASE(chunks_beyond_32_and_40_bits_are_exact) {
  const Extent n = (Extent{1} << 41) + 3;
  const auto boxes = Layout::chunk(1, 1000).boxes_of({2, n}, Rank{999});
  BOOST_TEST(boxes.at(0).box.lower(1) == (n / 1000 + 1) * 999);
  BOOST_TEST(boxes.at(0).box.upper(1) == n);
  const Layout huge = Layout::chunk(0, std::numeric_limits<int>::max());
  BOOST_TEST(huge.boxes_of({std::numeric_limits<Extent>::max()}, Rank{std::numeric_limits<int>::max() - 1}).size() ==
             1);
}

BOOST_AUTO_TEST_CASE(plain_shards_of_one_dim_nest_left_to_right) {
  const Layout nested = Layout::mesh({4, 2}, {Shard{0}, Shard{0}});
  BOOST_TEST(all_held(nested, {18}, 8) == "[0:3]; [3:5]; [5:8]; [8:10]; [10:13]; [13:15]; [15:17]; [17:18]");
}

BOOST_AUTO_TEST_CASE(strided_shards_hold_intervals) {
  BOOST_TEST(all_held(Layout::mesh({2}, {StridedShard{0, 2}}), {5}, 2) == "[0:2] [3:4]; [2:3] [4:5]");
  const Layout strided = Layout::mesh({4, 2}, {StridedShard{0, 2}, Shard{0}});
  BOOST_TEST(all_held(strided, {18}, 8) == "[0:3]; [9:12]; [3:6]; [12:15]; [6:9]; [15:18]; -; -");
  BOOST_TEST(all_held(strided, {15}, 8) == "[0:2]; [8:10]; [2:4]; [10:12]; [4:6]; [12:14]; [6:8]; [14:15]");
  BOOST_TEST(held(Layout::mesh({1}, {StridedShard{0, 3}}), {9}, 0) == "[0:9]");  // adjacent intervals are one
}

BOOST_AUTO_TEST_CASE(inner_parallelism_first_differs_for_uneven_extents) {
  const std::vector<Placement> placements{StridedShard{0, 2}, Shard{0}};
  const Layout outer = Layout::mesh({3, 2}, placements);
  const Layout inner = Layout::mesh({3, 2}, placements, MeshOrder::tp_first);
  BOOST_TEST(held(outer, {7}, 4) == "[6:7]");
  BOOST_TEST(held(inner, {7}, 4) == "-");  // 0..3 over three ranks leaves none: 2, 2, 0
  BOOST_TEST(all_held(inner, {7}, 6) == "[0:2]; [4:5]; [2:4]; [5:6]; -; [6:7]");
  BOOST_TEST(tiles(outer, {7}, 6));
  BOOST_TEST(tiles(inner, {7}, 6));
  for (const Extent even : {2, 6, 8, 10, 22}) BOOST_TEST(all_held(outer, {even}, 6) == all_held(inner, {even}, 6));
}

BOOST_AUTO_TEST_CASE(inner_parallelism_first_takes_plain_shards_left_to_right) {
  // ep cuts 21 into 11 + 10, tp cuts 11 into 6 + 5, dp cuts 5 into 2 + 2 + 1.
  const Layout layout = Layout::mesh({3, 2, 2}, {StridedShard{0, 4}, Shard{0}, Shard{0}}, MeshOrder::tp_first);
  BOOST_TEST(held(layout, {21}, 0) == "[0:2]");
  BOOST_TEST(held(layout, {21}, 1) == "[6:8]");
  BOOST_TEST(held(layout, {21}, 2 * 4 + 1) == "[10:11]");
  BOOST_TEST(held(layout, {21}, 1 * 4 + 2) == "[13:15]");
  BOOST_TEST(tiles(layout, {21}, 12));
}

BOOST_AUTO_TEST_CASE(two_strided_shards_apply_from_the_inside_outwards) {
  const std::vector<Placement> placements{StridedShard{0, 6}, StridedShard{0, 2}, Shard{0}};
  const Layout inner = Layout::mesh({2, 3, 2}, placements, MeshOrder::tp_first);
  BOOST_TEST(all_held(inner, {24}, 12) == all_held(Layout::mesh({2, 3, 2}, placements), {24}, 12));
  BOOST_TEST(tiles(inner, {23}, 12));
}

BOOST_AUTO_TEST_CASE(a_local_array_is_row_major_with_intervals_concatenated) {
  // Dim 0 holds 0:2 and 3:4, dim 1 holds 2:4: the local array is 3 x 2.
  const auto boxes = Layout::mesh({2, 2}, {StridedShard{0, 2}, Shard{1}}).boxes_of({5, 4}, Rank{1});
  BOOST_REQUIRE(boxes.size() == 2U);
  BOOST_TEST((boxes[0] == PlacedBox{{{0, 2}, {2, 2}}, 0, {2, 1}}));
  BOOST_TEST((boxes[1] == PlacedBox{{{3, 2}, {1, 2}}, 4, {2, 1}}));
  const auto cols = Layout::mesh({2}, {StridedShard{-1, 2}}).boxes_of({3, 5}, Rank{0});
  BOOST_REQUIRE(cols.size() == 2U);
  BOOST_TEST((cols[0] == PlacedBox{{{0, 0}, {3, 2}}, 0, {3, 1}}));
  BOOST_TEST((cols[1] == PlacedBox{{{0, 3}, {3, 1}}, 2, {3, 1}}));
}

BOOST_AUTO_TEST_CASE(a_mesh_puts_ranks_where_its_list_says) {
  const Layout layout =
      Layout::mesh({2, 2}, {Shard{0}, Replicate{}}, MeshOrder::mesh, {Rank{7}, Rank{2}, Rank{4}, Rank{0}});
  BOOST_TEST(all_held(layout, {4}, 8) == "[2:4]; -; [0:2]; -; [2:4]; -; -; [0:2]");
  const Layout stage = Layout::mesh({2}, {Shard{0}}, MeshOrder::mesh, {Rank{4}, Rank{5}});
  BOOST_TEST(all_held(stage, {4}, 7) == "-; -; -; -; [0:2]; [2:4]; -");
}

BOOST_AUTO_TEST_CASE(boxes_lie_back_to_back) {
  const Layout layout = Layout::boxes({{Rank{1}, {{{2, 0}, {1, 4}}, {{9, 9}, {0, 3}}, {{0, 1}, {2, 3}}}}});
  layout.check({3, 4}, 2);
  const auto boxes = layout.boxes_of({3, 4}, Rank{1});
  BOOST_REQUIRE(boxes.size() == 2U);
  BOOST_TEST((boxes[1] == PlacedBox{{{0, 1}, {2, 3}}, 4, {3, 1}}));
  BOOST_TEST(layout.local_elements({3, 4}, Rank{1}) == 10);
  BOOST_TEST(layout.boxes_of({3, 4}, Rank{0}).empty());
}

BOOST_AUTO_TEST_CASE(a_scalar_can_be_replicated_and_listed) {
  BOOST_TEST(Layout::replicated().local_elements({}, Rank{5}) == 1);
  const Layout listed = Layout::boxes({{Rank{0}, {Box::whole({})}}});
  listed.check({}, 1);
  BOOST_TEST(listed.local_elements({}, Rank{0}) == 1);
  mismatch("overlap", Layout::boxes({{Rank{0}, {Box::whole({}), Box::whole({})}}}), {}, 1);
}

BOOST_AUTO_TEST_CASE(what_cannot_hold_the_tensor_is_refused_by_name) {
  mismatch("chunk(dim 2, over 2) names dim 2", Layout::chunk(2, 2), {4, 4}, 2);
  mismatch("dim -3", Layout::chunk(-3, 2), {4, 4}, 2);
  mismatch("needs 3 ranks, there are 2", Layout::chunk(0, 3), {4}, 2);
  mismatch("names dim 1", Layout::mesh({2}, {Shard{1}}), {4}, 2);
  mismatch("has 0 dims", Layout::mesh({2}, {Shard{0}}), {}, 2);
  mismatch("uses rank 3, there are 3 ranks", Layout::mesh({2, 2}, {Shard{0}, Replicate{}}), {4}, 3);
  mismatch("uses rank 9", Layout::mesh({2}, {Shard{0}}, MeshOrder::mesh, {Rank{9}, Rank{1}}), {4}, 9);
  mismatch("dim 1 of shape (4, -1) is negative", Layout::replicated(), {4, -1}, 1);
  const auto box = [](const Box& only) { return Layout::boxes({{Rank{2}, {only}}}); };
  mismatch("[0:2, 3:5] of rank 2 leaves shape (4, 4) in dim 1", box({{0, 3}, {2, 2}}), {4, 4}, 3);
  mismatch("leaves shape (4, 4) in dim 0", box({{-1, 3}, {2, 1}}), {4, 4}, 3);
  mismatch("has 1 dims", box({{0}, {2}}), {4, 4}, 3);
  mismatch("rank 2 holds boxes, there are 2 ranks", box({{0}, {2}}), {4}, 2);
  mismatch("boxes [0:3] and [2:4] of rank 1 overlap",
           Layout::boxes({{Rank{0}, {{{0}, {4}}}}, {Rank{1}, {{{0}, {3}}, {{2}, {2}}}}}), {4}, 2);
}

BOOST_AUTO_TEST_CASE(a_split_factor_must_count_the_later_cuts_of_its_dim) {
  const auto tp_first = [](std::vector<Placement> placements) {
    return Layout::mesh({2, 3, 2}, std::move(placements), MeshOrder::tp_first);
  };
  mismatch("mesh dim 0 has split factor 2, but later mesh dims cut dim 0 into 6",
           tp_first({StridedShard{0, 2}, Shard{0}, Shard{-2}}), {8, 8}, 12);
  mismatch("cut dim 0 into 3", tp_first({StridedShard{0, 6}, Shard{0}, Shard{1}}), {8, 8}, 12);
  mismatch("mesh dim 2 has split factor 2", tp_first({Shard{0}, Shard{0}, StridedShard{0, 2}}), {8, 8}, 12);
  tp_first({StridedShard{0, 6}, Shard{0}, Shard{-2}}).check({8, 8}, 12);
  tp_first({StridedShard{1, 2}, Shard{0}, Shard{-1}}).check({8, 8}, 12);
  Layout::mesh({2}, {StridedShard{0, 5}}).check({8}, 2);  // mesh order takes any
}

BOOST_AUTO_TEST_CASE(what_is_no_layout_at_all_is_refused) {
  invalid("chunk over 0 ranks", [] { Layout::chunk(0, 0); });
  invalid("0 mesh dims", [] { Layout::mesh({}, {}); });
  invalid("1 placements for 2 mesh dims", [] { Layout::mesh({2, 2}, {Shard{0}}); });
  invalid("mesh dim 1 has size 0", [] { Layout::mesh({2, 0}, {Shard{0}, Shard{0}}); });
  invalid("split factor 0", [] { Layout::mesh({2}, {StridedShard{0, 0}}); });
  invalid("3 ranks for 2 positions", [] {
    Layout::mesh({2}, {Shard{0}}, MeshOrder::mesh, {Rank{0}, Rank{1}, Rank{2}});
  });
  invalid("rank 5 is at positions 0 and 1", [] { Layout::mesh({2}, {Shard{0}}, MeshOrder::mesh, {Rank{5}, Rank{5}}); });
  invalid("position 1 has rank -1", [] { Layout::mesh({2}, {Shard{0}}, MeshOrder::mesh, {Rank{0}, Rank{-1}}); });
  invalid("rank -4", [] { Layout::boxes({{Rank{-4}, {}}}); });
  invalid("1 offsets and 2 sizes", [] { Layout::boxes({{Rank{0}, {{{0}, {1, 1}}}}}); });
  invalid("size -1 in dim 0", [] { Layout::boxes({{Rank{0}, {{{0}, {-1}}}}}); });
  invalid("beyond 64 bits", [] { Layout::boxes({{Rank{0}, {{{std::numeric_limits<Extent>::max()}, {2}}}}}); });
}

BOOST_AUTO_TEST_SUITE_END()
