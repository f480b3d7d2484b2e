// SPDX-License-Identifier: Apache-2.0
#include "move/blocks.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <vector>

#include "geometry/strides.hpp"
#include "support/random_layout.hpp"

BOOST_AUTO_TEST_SUITE(blocks)

using namespace shardwire;
using move::Blocks;
using test::pick;
using test::Random;

BOOST_AUTO_TEST_CASE(blocks_cover_what_is_held_and_are_as_large_as_they_may_be) {
  const PlacedBoxes held = place_boxes(Layout::replicated(), {1000, 1000}, Rank{0});
  const Blocks blocks(held.all(), 4);
  BOOST_REQUIRE(blocks.size() == 4U);  // 262 rows of 4000 bytes in 1 MiB
  BOOST_TEST((blocks[0] == Box{{0, 0}, {262, 1000}}));
  BOOST_TEST((blocks[3] == Box{{786, 0}, {214, 1000}}));
}

BOOST_AUTO_TEST_CASE(a_rank_that_holds_nothing_has_no_block) {
  const Blocks blocks(std::vector<PlacedBox>{}, 4);
  BOOST_TEST(blocks.size() == 0U);
  std::vector<std::uint32_t> found{7};
  blocks.touching({{0, 0}, {1, 1}}, found);
  BOOST_TEST(found.empty());
}

BOOST_AUTO_TEST_CASE(each_element_is_in_one_block_of_at_most_the_limit_which_is_found_by_any_box_that_has_it) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const Extents shape{pick(random, 1, 300), pick(random, 1, 900)};
    const int ranks = pick(random, 1, 4);
    const Rank rank{pick(random, 0, ranks - 1)};
    const PlacedBoxes held = place_boxes(test::random_layout(random, shape, ranks), shape, rank);
    const ByteCount item_bytes = ByteCount{1} << pick(random, 0, 3);
    const Blocks blocks(held.all(), item_bytes);
    ElementCount elements = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      elements += blocks[i].volume();
      BOOST_REQUIRE(static_cast<ByteCount>(blocks[i].volume()) * item_bytes <= Blocks::max_bytes);
      BOOST_REQUIRE(contains(blocks.held(i).box, blocks[i]));
    }
    BOOST_REQUIRE(elements == held.elements());
    for (int query = 0; query < 10; ++query) {
      Box box{{pick(random, 0, static_cast<int>(shape[0]) - 1), pick(random, 0, static_cast<int>(shape[1]) - 1)},
              {1, 1}};
      box.size[0] = pick(random, 1, static_cast<int>(shape[0] - box.offset[0]));
      box.size[1] = pick(random, 1, static_cast<int>(shape[1] - box.offset[1]));
      std::vector<std::uint32_t> found;
      blocks.touching(box, found);
      for (std::uint32_t i = 0; i < blocks.size(); ++i) {
        const bool listed = std::ranges::find(found, i) != found.end();
        BOOST_REQUIRE(listed == intersect(blocks[i], box).has_value());
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
