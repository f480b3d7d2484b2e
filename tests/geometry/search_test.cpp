// SPDX-License-Identifier: Apache-2.0
// A layout's own search against looking at every rank's boxes.
#include <boost/test/unit_test.hpp>

#include <algorithm>

#include "geometry/layout_rule.hpp"
#include "support/random_layout.hpp"

using namespace shardwire;
using test::pick;
using test::Random;

BOOST_AUTO_TEST_SUITE(search)

BOOST_AUTO_TEST_CASE(finds_what_looking_at_every_rank_finds) {
  const std::uint64_t seed = test::seed();
  int searched = 0;
  int found_boxes = 0;
  for (std::uint64_t round = 0; round < 6000; ++round) {
    BOOST_TEST_CONTEXT("TEST_SEED=" << seed << " round " << round) {
      Random random(seed + round * 1'000'003);
      const Extents shape = test::random_shape(random);
      if (volume_of(shape) == 0) continue;
      const int ranks = pick(random, 1, 12);
      const Layout layout = test::random_layout(random, shape, ranks);
      Box region{shape, shape};
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        const int last = static_cast<int>(shape[dim]) - 1;
        region.offset[dim] = pick(random, 0, last);
        region.size[dim] = pick(random, 1, static_cast<int>(shape[dim] - region.offset[dim]));
      }
      std::vector<HeldBox> found;
      if (!layout.rule().find(shape, region, found)) {
        BOOST_REQUIRE(found.empty());
        continue;
      }
      ++searched;
      std::vector<std::tuple<Rank, Box, ElementCount, Extents>> expected;
      std::vector<std::tuple<Rank, Box, ElementCount, Extents>> actual;
      for (int rank = 0; rank < ranks; ++rank) {
        for (const PlacedBox& placed : layout.boxes_of(shape, Rank{rank})) {
          if (!intersect(placed.box, region)) continue;
          expected.emplace_back(Rank{rank}, placed.box, placed.local_offset, placed.local_strides);
        }
      }
      for (const HeldBox& held : found) {
        actual.emplace_back(held.rank, held.placed.box, held.placed.local_offset, held.placed.local_strides);
      }
      std::sort(expected.begin(), expected.end());
      std::sort(actual.begin(), actual.end());
      BOOST_REQUIRE((actual == expected));
      found_boxes += static_cast<int>(actual.size());
    }
  }
  BOOST_TEST(searched > 2000);
  BOOST_TEST(found_boxes > 4000);
}

BOOST_AUTO_TEST_SUITE_END()
