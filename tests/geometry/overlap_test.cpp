// SPDX-License-Identifier: Apache-2.0
#include "geometry/overlap.hpp"

#include <boost/test/unit_test.hpp>

#include "support/random_layout.hpp"

BOOST_AUTO_TEST_SUITE(overlap)

using namespace shardwire;

namespace {

std::vector<Box> grid(int rows, int columns, Extent height, Extent width) {
  std::vector<Box> boxes;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      boxes.push_back({{row * height, column * width}, {height, width}});
    }
  }
  return boxes;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_search_finds_what_all_pairs_find) {
  test::Random random(test::seed());
  std::size_t hits = 0;
  for (int round = 0; round < 400; ++round) {
    const Extents shape = test::random_shape(random);
    std::vector<Box> boxes;
    for (int i = test::pick(random, 0, 12); i > 0; --i) test::split_at_random(random, Box::whole(shape), 2, boxes);
    const OverlapIndex index(boxes);
    std::vector<std::uint32_t> found{99};
    bool any = false;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      std::vector<std::uint32_t> expected;
      for (std::uint32_t k = 0; k < boxes.size(); ++k) {
        if (intersect(boxes[i], boxes[k])) expected.push_back(k);
      }
      index.find(boxes[i], found);
      BOOST_TEST(found == expected);
      hits += found.size();
      any = any || expected.size() > 1;
    }
    const auto pair = index.find_overlap();
    BOOST_TEST(pair.has_value() == any);
    if (pair) BOOST_TEST((pair->first < pair->second && intersect(boxes[pair->first], boxes[pair->second])));
  }
  BOOST_TEST(hits > 1000U);
}

BOOST_AUTO_TEST_CASE(a_large_grid_is_searched_box_by_box) {
  const std::vector<Box> boxes = grid(256, 256, 7, 5);
  const OverlapIndex index(boxes);
  BOOST_TEST(!index.find_overlap().has_value());
  std::vector<std::uint32_t> found;
  index.find({{7 * 100 + 6, 5 * 200 + 4}, {2, 2}}, found);
  const std::vector<std::uint32_t> corner{100 * 256 + 200, 100 * 256 + 201, 101 * 256 + 200, 101 * 256 + 201};
  BOOST_TEST(found == corner);
  BOOST_TEST(covers_exactly({{0, 0}, {256 * 7, 256 * 5}}, boxes));
}

BOOST_AUTO_TEST_CASE(nothing_is_found_among_nothing) {
  std::vector<std::uint32_t> found{1};
  OverlapIndex().find(Box::whole({4}), found);
  BOOST_TEST(found.empty());
  OverlapIndex(std::vector<Box>{{{1}, {0}}}).find(Box::whole({4}), found);
  BOOST_TEST(found.empty());
}

BOOST_AUTO_TEST_CASE(a_cover_takes_every_element_once) {
  const Box whole{{2, 0}, {4, 6}};
  const Box left{{2, 0}, {4, 2}};
  const Box right{{2, 2}, {4, 4}};
  BOOST_TEST(covers_exactly(whole, {left, right}));
  BOOST_TEST(covers_exactly(whole, {right, left, right}));              // replicas count once
  BOOST_TEST(covers_exactly(whole, {left, right, {{99, 0}, {0, 9}}}));  // an empty box may lie anywhere
  BOOST_TEST(!covers_exactly(whole, {left}));
  BOOST_TEST(!covers_exactly(whole, {left, right, {{2, 0}, {1, 1}}}));
  BOOST_TEST(!covers_exactly(whole, {left, {{2, 1}, {4, 4}}}));  // volume fits, one column twice and one missing
  BOOST_TEST(!covers_exactly(whole, {left, {{3, 2}, {4, 4}}}));  // out of bounds
  BOOST_TEST(covers_exactly({{0}, {0}}, {}));
  BOOST_TEST(!covers_exactly({{0}, {0}}, {{{0}, {1}}}));
  BOOST_TEST(covers_exactly(Box::whole({}), {Box::whole({}), Box::whole({})}));
}

BOOST_AUTO_TEST_CASE(chunks_at_rounded_down_places_are_no_cover) {
  // floor(n / N) * r offsets with torch's sizes: a frequent mistake for uneven n.
  BOOST_TEST(!covers_exactly(Box::whole({5}), {{{0}, {2}}, {{1}, {2}}, {{2}, {1}}}));
}

BOOST_AUTO_TEST_CASE(what_is_left_around_a_hole_tiles_the_box) {
  const Box box{{1, 2, 3}, {5, 6, 7}};
  const Box hole{{2, 2, 5}, {2, 6, 1}};
  std::vector<Box> parts;
  subtract(box, hole, parts);
  BOOST_TEST(parts.size() == 4U);
  parts.push_back(hole);
  BOOST_TEST(covers_exactly(box, parts));
  parts.clear();
  subtract(box, box, parts);
  BOOST_TEST(parts.empty());
}

BOOST_AUTO_TEST_SUITE_END()
