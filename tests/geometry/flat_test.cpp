// SPDX-License-Identifier: Apache-2.0
// Worked values of flat parameters, and refusals.
#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <string>

#include "geometry/layout_rule.hpp"
#include "shardwire/error.hpp"
#include "shardwire/layout.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(flat)

using namespace shardwire;
using test::refused;

namespace {

using Members = std::vector<FlatMember>;

/// "box@local offset" of each box of a rank; "-" for a rank that holds nothing.
std::string held(const Layout& layout, const Extents& shape, int rank) {
  std::string text;
  for (const PlacedBox& placed : layout.boxes_of(shape, Rank{rank})) {
    text += fmt::format("{}{}@{}", text.empty() ? "" : " ", to_string(placed.box), placed.local_offset);
  }
  return text.empty() ? "-" : text;
}

const Members three{{{9, 5}}, {{5}}, {{5}}};

}  // namespace

BOOST_AUTO_TEST_CASE(members_follow_each_other_without_alignment) {
  const auto layouts = Layout::flat(three, 4);  // U = 55, s = 14
  for (const Layout& layout : layouts) BOOST_TEST(layout.local_elements({}, Rank{3}) == 14);
  BOOST_TEST(held(layouts[0], {9, 5}, 0) == "[0:2, 0:5]@0 [2:3, 0:4]@10");
  BOOST_TEST(held(layouts[0], {9, 5}, 1) == "[2:3, 4:5]@0 [3:5, 0:5]@1 [5:6, 0:3]@11");
  BOOST_TEST(held(layouts[0], {9, 5}, 3) == "[8:9, 2:5]@0");  // flattened [42, 45)
  BOOST_TEST(held(layouts[1], {5}, 2) == "-");
  BOOST_TEST(held(layouts[1], {5}, 3) == "[0:5]@3");
  BOOST_TEST(held(layouts[2], {5}, 3) == "[0:5]@8");  // one element of padding is left
  BOOST_TEST(held(layouts[2], {5}, 4) == "-");
  BOOST_TEST(layouts[2].local_elements({5}, Rank{4}) == 0);
}

BOOST_AUTO_TEST_CASE(aligned_members_start_at_multiples) {
  const auto over_two = Layout::flat(three, 2, 4);  // starts 0, 48, 56; U = 62, s = 31
  BOOST_TEST(over_two[0].local_elements({9, 5}, Rank{0}) == 31);
  BOOST_TEST(held(over_two[0], {9, 5}, 1) == "[6:7, 1:5]@0 [7:9, 0:5]@4");
  BOOST_TEST(held(over_two[1], {5}, 1) == "[0:5]@17");
  BOOST_TEST(held(over_two[2], {5}, 1) == "[0:5]@25");
  const auto over_four = Layout::flat(three, 4, 4);  // U = 64, s = 16
  BOOST_TEST(over_four[0].local_elements({9, 5}, Rank{0}) == 16);
  BOOST_TEST(held(over_four[1], {5}, 3) == "[0:5]@0");
  BOOST_TEST(held(over_four[2], {5}, 3) == "[0:5]@8");
}

BOOST_AUTO_TEST_CASE(a_rank_of_padding_alone_holds_nothing) {
  const auto layouts = Layout::flat(Members{{{3}}, {{2}}}, 4);  // U = 5, s = 2: rank 3 starts past the end
  BOOST_TEST(held(layouts[0], {3}, 1) == "[2:3]@0");
  BOOST_TEST(held(layouts[1], {2}, 1) == "[0:1]@1");
  BOOST_TEST(held(layouts[1], {2}, 2) == "[1:2]@0");
  BOOST_TEST(held(layouts[1], {2}, 3) == "-");
  BOOST_TEST(layouts[1].local_elements({2}, Rank{3}) == 2);
}

BOOST_AUTO_TEST_CASE(a_flat_range_is_at_most_2d_minus_1_boxes) {
  const Members members{{{7}}, {{3, 4, 5}}, {{1}}};
  const auto layouts = Layout::flat(members, 4);  // the second starts at 7, s = 17
  BOOST_TEST(held(layouts[1], {3, 4, 5}, 0) == "[0:1, 0:2, 0:5]@7");
  BOOST_TEST(held(layouts[1], {3, 4, 5}, 1) == "[0:1, 2:4, 0:5]@0 [1:2, 0:1, 0:5]@10 [1:2, 1:2, 0:2]@15");
  BOOST_TEST(held(layouts[1], {3, 4, 5}, 2) == "[1:2, 1:2, 2:5]@0 [1:2, 2:4, 0:5]@3 [2:3, 0:1, 0:4]@13");
  const auto few = Layout::flat(Members{{{1, 3, 1, 5}}}, 5);
  BOOST_TEST(held(few[0], {1, 3, 1, 5}, 1) == "[0:1, 0:1, 0:1, 3:5]@0 [0:1, 1:2, 0:1, 0:1]@2");
  BOOST_TEST(few[0].rule().max_boxes({1, 3, 1, 5}) == 3);
}

BOOST_AUTO_TEST_CASE(one_element_members_take_their_place) {
  const auto layouts = Layout::flat(Members{{{3}}, {{}}, {{4}}, {{1}}}, 2);  // U = 9, s = 5
  BOOST_TEST(held(layouts[1], {}, 0) == "[]@3");
  BOOST_TEST(held(layouts[2], {4}, 0) == "[0:1]@4");
  BOOST_TEST(held(layouts[3], {1}, 1) == "[0:1]@3");
}

BOOST_AUTO_TEST_CASE(slices_of_outer_ranks_have_flat_parameters_of_their_own) {
  // TP cuts 5 rows into 3 + 2, 7 columns into 4 + 3, and leaves the last whole: 6 + 8 + 1 and 4 + 6 + 1 elements.
  const Members members{{{5, 2}, Layout::chunk(0, 2)}, {{2, 7}, Layout::mesh({2}, {Shard{1}})}, {{1}}};
  const auto layouts = Layout::flat(members, 2, 0, 2);
  BOOST_TEST(layouts[0].local_elements({5, 2}, Rank{0}) == 8);
  BOOST_TEST(layouts[0].local_elements({5, 2}, Rank{3}) == 6);
  BOOST_TEST(held(layouts[0], {5, 2}, 0) == "[0:3, 0:2]@0");
  BOOST_TEST(held(layouts[0], {5, 2}, 1) == "[3:5, 0:2]@0");
  BOOST_TEST(held(layouts[0], {5, 2}, 2) == "-");
  BOOST_TEST(held(layouts[1], {2, 7}, 0) == "[0:1, 0:2]@6");
  BOOST_TEST(held(layouts[1], {2, 7}, 1) == "[0:1, 4:6]@4");
  BOOST_TEST(held(layouts[1], {2, 7}, 2) == "[0:1, 2:4]@0 [1:2, 0:4]@2");
  BOOST_TEST(held(layouts[1], {2, 7}, 3) == "[0:1, 6:7]@0 [1:2, 4:7]@1");
  BOOST_TEST(held(layouts[2], {1}, 2) == "[0:1]@6");
  BOOST_TEST(held(layouts[2], {1}, 3) == "[0:1]@4");
}

BOOST_AUTO_TEST_CASE(a_slice_of_several_intervals_is_flattened_as_one_array) {
  // Columns 0:2 and 4:6 of 8 make rows of 4; 3 rows over 2 ranks, 6 each.
  const Members members{{{3, 8}, Layout::mesh({2}, {StridedShard{1, 2}})}};
  const Layout layout = Layout::flat(members, 2, 0, 2)[0];
  BOOST_TEST(held(layout, {3, 8}, 0) == "[0:1, 0:2]@0 [0:1, 4:6]@2 [1:2, 0:2]@4");
  BOOST_TEST(held(layout, {3, 8}, 3) == "[1:2, 6:8]@0 [2:3, 2:4]@2 [2:3, 6:8]@4");
}

BOOST_AUTO_TEST_CASE(a_transposed_parameter_is_flattened_in_memory_order) {
  const Layout layout = Layout::flat(Members{{{3, 4}, {}, {1, 0}}}, 2)[0];
  const auto boxes = layout.boxes_of({3, 4}, Rank{1});
  BOOST_REQUIRE(boxes.size() == 1U);
  BOOST_TEST((boxes[0] == PlacedBox{{{0, 2}, {3, 2}}, 0, {1, 3}}));
  BOOST_TEST(held(Layout::flat(Members{{{3, 4}, {}, {1, 0}}}, 3)[0], {3, 4}, 1) == "[1:3, 1:2]@0 [0:2, 2:3]@2");
  BOOST_TEST((Layout::flat(Members{{{3, 4}, {}, {0, 1}}}, 2)[0] == Layout::flat(Members{{{3, 4}}}, 2)[0]));
}

BOOST_AUTO_TEST_CASE(flat_parameters_beyond_32_and_40_bits_are_exact) {
  const Extent rows = Extent{1} << 21;
  const Members members{{{rows, rows}}, {{3}}};
  const auto layouts = Layout::flat(members, 1000, 8);
  const Extent part = ((Extent{1} << 42) + 8 + 999) / 1000;  // 3 more, padded to a multiple of 1000
  BOOST_TEST(layouts[0].local_elements({rows, rows}, Rank{0}) == part);
  BOOST_TEST(held(layouts[1], {3}, 999) == fmt::format("[0:3]@{}", (Extent{1} << 42) - part * 999));
}

BOOST_AUTO_TEST_CASE(what_makes_no_flat_parameter_is_refused_by_name) {
  const auto invalid = [](const std::string& part, const std::function<void()>& action) {
    refused(ErrorCode::invalid_argument, part, action);
  };
  const auto mismatch = [](const std::string& part, const std::function<void()>& action) {
    refused(ErrorCode::layout_mismatch, part, action);
  };
  invalid("0 flat ranks times 1 outer ranks", [] { Layout::flat(three, 0); });
  invalid("2 flat ranks times 0 outer ranks", [] { Layout::flat(three, 2, 0, 0); });
  invalid("alignment -1", [] { Layout::flat(three, 2, -1); });
  invalid("the order of the dims of shape (2, 3) does not name each once", [] {
    Layout::flat(Members{{{2, 3}, {}, {1, 1}}}, 2);
  });
  invalid("member 1 of shape (4,): a boxes layout cannot be the outer one", [] {
    Layout::flat(Members{{{2}}, {{4}, Layout::boxes({{Rank{0}, {Box::whole({4})}}})}}, 2);
  });
  invalid("a flat layout cannot be the outer one", [] {
    Layout::flat(Members{{{4}, Layout::flat(Members{{{4}}}, 2)[0]}}, 2, 0, 2);
  });
  mismatch("member 0 of shape (4,): chunk(dim 1, over 2) names dim 1", [] {
    Layout::flat(Members{{{4}, Layout::chunk(1, 2)}}, 2, 0, 2);
  });
  mismatch("chunk(dim 0, over 3) needs 3 ranks, there are 2", [] {
    Layout::flat(Members{{{4}, Layout::chunk(0, 3)}}, 2, 0, 2);
  });
  invalid("the length of a flat parameter overflows", [] {
    const Extent half = Extent{1} << 62;
    Layout::flat(Members{{{half}}, {{half}}}, 2);
  });
  mismatch("member 0 of shape (-1,)", [] { Layout::flat(Members{{{-1}}}, 2); });
  const auto layouts = Layout::flat(three, 4);
  mismatch("flat (at 45 over 4) is of a tensor of shape (5,), this one has (6,)", [&] { layouts[1].check({6}, 4); });
  mismatch("needs 4 ranks, there are 3", [&] { layouts[1].check({5}, 3); });
  mismatch("puts 15 elements of outer rank 0 at 2, beyond its 2 parts of 8", [] {
    layout_from({"flat", {{"shape", {3, 5}}, {"place", {2, 1, 2, 8}}}, {}}).check({3, 5}, 2);
  });
}

BOOST_AUTO_TEST_SUITE_END()
