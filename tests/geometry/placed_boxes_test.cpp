// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "geometry/placed_boxes.hpp"

#include <boost/test/unit_test.hpp>

#include "shardwire/error.hpp"
#include "support/random_layout.hpp"

BOOST_AUTO_TEST_SUITE(placed_boxes)

using namespace shardwire;

namespace {

// side x side unit squares of edge `edge`, placed back to back.
std::vector<PlacedBox> squares(Extent side, Extent edge) {
  std::vector<PlacedBox> placed;
  for (Extent i = 0; i < side; ++i) {
    for (Extent k = 0; k < side; ++k) {
      const Box box{{i * edge, k * edge}, {edge, edge}};
      placed.push_back({box, static_cast<ElementCount>(placed.size()) * edge * edge, row_major_strides(box.size)});
    }
  }
  return placed;
}

const PlacedBox* one_by_one(const std::vector<PlacedBox>& boxes, const Box& piece) {
  for (const PlacedBox& placed : boxes) {
    if (!piece.empty() && contains(placed.box, piece)) return &placed;
  }
  return nullptr;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_piece_is_found_in_the_box_around_it_among_few_and_among_many) {
  for (const Extent side : {Extent{1}, Extent{3}, Extent{40}}) {
    const PlacedBoxes boxes(squares(side, 4));
    const Box inside{{4 * (side - 1) + 1, 4 * (side / 2) + 2}, {3, 2}};
    const PlacedBox* found = boxes.around(inside);
    BOOST_REQUIRE(found != nullptr);
    BOOST_TEST((found->box == Box{{4 * (side - 1), 4 * (side / 2)}, {4, 4}}));
  }
}

BOOST_AUTO_TEST_CASE(a_piece_across_two_boxes_outside_of_all_empty_or_of_other_dims_is_not_found) {
  for (const Extent side : {Extent{3}, Extent{40}}) {
    const PlacedBoxes boxes(squares(side, 4));
    BOOST_TEST(!boxes.around({{3, 0}, {2, 1}}));
    BOOST_TEST(!boxes.around({{4 * side, 0}, {1, 1}}));
    BOOST_TEST(!boxes.around({{0, 0}, {0, 1}}));
    BOOST_TEST(!boxes.around({{0}, {1}}));
    BOOST_TEST(!boxes.around({{0, 0}, {4 * side, 4 * side}}));
  }
  BOOST_TEST(!PlacedBoxes().around({{0}, {1}}));
}

BOOST_AUTO_TEST_CASE(a_scalar_lies_in_the_box_without_dims) {
  const PlacedBoxes boxes({{Box{}, 0, {}}});
  BOOST_TEST(boxes.around(Box{}) == &boxes.all().front());
}

BOOST_AUTO_TEST_CASE(answers_are_those_of_a_search_through_all_boxes) {
  test::Random random(test::seed());
  for (int round = 0; round < 300; ++round) {
    const Extents shape = test::random_shape(random);
    const Layout layout = test::random_layout(random, shape, 4);
    try {
      layout.check(shape, 4);
    } catch (const Error&) {
      continue;
    }
    const PlacedBoxes boxes(layout.boxes_of(shape, Rank{test::pick(random, 0, 3)}));
    for (int query = 0; query < 20; ++query) {
      Box piece = Box::whole(shape);
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        piece.offset[dim] = test::pick(random, 0, static_cast<int>(shape[dim]));
        piece.size[dim] = test::pick(random, 0, static_cast<int>(std::min<Extent>(3, shape[dim] - piece.offset[dim])));
      }
      BOOST_TEST(boxes.around(piece) == one_by_one(boxes.all(), piece));
    }
  }
}

BOOST_AUTO_TEST_CASE(sizes_count_the_elements_held_and_reach_to_the_last_of_them) {
  const PlacedBoxes boxes({{Box{{0, 0}, {2, 3}}, 5, {8, 1}}, {Box{{4, 0}, {1, 3}}, 20, {3, 1}}});
  BOOST_TEST(boxes.elements() == 9);
  BOOST_TEST(boxes.local_end() == 23);
  BOOST_TEST(PlacedBoxes().local_end() == 0);
}

BOOST_AUTO_TEST_SUITE_END()
