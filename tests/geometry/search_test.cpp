// SPDX-License-Identifier: Apache-2.0
// A layout's own search, compared with a scan of every rank's boxes.
#include <boost/test/unit_test.hpp>

#include <algorithm>

#include "geometry/found_boxes.hpp"
#include "support/random_layout.hpp"

BOOST_AUTO_TEST_SUITE(search)

using namespace shardwire;
using test::pick;
using test::Random;

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
      std::vector<std::tuple<Rank, Box, ElementCount, Extents>> actual;
      const auto on_box = [&](const PlacedBox& placed, Rank rank) {
        actual.emplace_back(rank, placed.box, placed.local_offset, placed.local_strides);
        return true;
      };
      if (!layout.rule().find(shape, region, on_box)) {
        BOOST_REQUIRE(actual.empty());
        continue;
      }
      ++searched;
      std::vector<std::tuple<Rank, Box, ElementCount, Extents>> expected;
      for (int rank = 0; rank < ranks; ++rank) {
        for (const PlacedBox& placed : layout.boxes_of(shape, Rank{rank})) {
          if (!intersect(placed.box, region)) continue;
          expected.emplace_back(Rank{rank}, placed.box, placed.local_offset, placed.local_strides);
        }
      }
      std::sort(expected.begin(), expected.end());
      std::sort(actual.begin(), actual.end());
      BOOST_REQUIRE((actual == expected));
      found_boxes += static_cast<int>(actual.size());
      const auto enough = static_cast<std::size_t>(pick(random, 1, static_cast<int>(actual.size() + 1)));
      std::size_t shown = 0;
      layout.rule().find(shape, region, [&](const PlacedBox&, Rank) { return ++shown < enough; });
      BOOST_REQUIRE(shown == std::min(enough, actual.size()));
    }
  }
  BOOST_TEST(searched > 2000);
  BOOST_TEST(found_boxes > 4000);
}

BOOST_AUTO_TEST_CASE(found_boxes_give_back_what_was_added) {
  const std::uint64_t seed = test::seed();
  for (std::uint64_t round = 0; round < 500; ++round) {
    BOOST_TEST_CONTEXT("TEST_SEED=" << seed << " round " << round) {
      Random random(seed + round * 1'000'003);
      const auto most = static_cast<std::size_t>(pick(random, 1, 6));
      FoundBoxes found;
      found.clear(most);
      std::vector<std::pair<PlacedBox, Rank>> expected;
      std::size_t entries = 0;
      int rank = 0;
      for (int i = 0; i < 40; ++i) {
        const Extent at =
            pick(random, 0, 9) == 0 || expected.empty() ? pick(random, 0, 3) : expected.back().first.box.offset[0];
        rank += pick(random, 0, 3) == 0 ? pick(random, -5, 5) : 2;
        const PlacedBox placed{{{at}, {1}}, 0, {1}};
        const bool fresh = expected.empty() || expected.back().first != placed;
        BOOST_REQUIRE(found.add(placed, Rank{rank}) == (!fresh || entries < most));
        BOOST_REQUIRE(found.full() == (fresh && entries == most));
        if (found.full()) break;
        entries += fresh ? 1 : 0;
        expected.emplace_back(placed, Rank{rank});
      }
      std::vector<std::pair<PlacedBox, Rank>> actual;
      for (std::size_t i = 0; i < found.size(); ++i) {
        BOOST_REQUIRE(found.each_rank(i, [&](Rank holder) { return actual.emplace_back(found[i], holder), true; }));
        BOOST_REQUIRE(!found.each_rank(i, [](Rank) { return false; }));
      }
      BOOST_REQUIRE((actual == expected));
      found.clear();
      BOOST_REQUIRE((found.size() == 0U && !found.full()));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
