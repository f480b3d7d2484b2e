// SPDX-License-Identifier: Apache-2.0
// Meshes of one dim against lists of single indices, cut the way torch.chunk cuts a tensor.
#include <boost/test/unit_test.hpp>

#include <numeric>

#include "support/random_layout.hpp"

BOOST_AUTO_TEST_SUITE(mesh_oracle)

using namespace shardwire;

namespace {

using Indices = std::vector<Extent>;

Indices chunk(const Indices& all, Extent parts, Extent index) {
  const auto n = static_cast<Extent>(all.size());
  const Extent step = (n + parts - 1) / parts;
  Indices part;
  for (Extent i = 0; i < n; ++i) {
    if (step > 0 && i / step == index) part.push_back(all[static_cast<std::size_t>(i)]);
  }
  return part;
}

Indices strided(const Indices& all, Extent factor, Extent parts, Extent index) {
  Indices held;
  for (Extent j = 0; j < factor; ++j) {
    const Indices part = chunk(chunk(all, factor, j), parts, index);
    held.insert(held.end(), part.begin(), part.end());
  }
  return held;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_mesh_holds_what_index_lists_hold) {
  test::Random random(test::seed());
  std::size_t elements = 0;
  std::size_t split = 0;
  for (int round = 0; round < 2000; ++round) {
    const Extent n = test::pick(random, 0, 60);
    const bool tp_first = test::pick(random, 0, 1) == 1;
    std::vector<Extent> sizes(static_cast<std::size_t>(test::pick(random, 1, 3)));
    std::vector<Placement> placements(sizes.size());
    Extent later = 1;
    Extent count = 1;
    for (std::size_t m = sizes.size(); m-- > 0;) {
      sizes[m] = test::pick(random, 1, 4);
      count *= sizes[m];
      const int kind = test::pick(random, 0, 4);
      if (kind == 0) continue;
      if (kind <= 2)
        placements[m] = Shard{0};
      else
        placements[m] = StridedShard{-1, tp_first ? later : test::pick(random, 1, 5)};
      later *= sizes[m];
    }
    const Layout layout = Layout::mesh(sizes, placements, tp_first ? MeshOrder::tp_first : MeshOrder::mesh);
    layout.check({n}, static_cast<int>(count));

    for (Extent rank = 0; rank < count; ++rank) {
      Indices expected(static_cast<std::size_t>(n));
      std::iota(expected.begin(), expected.end(), Extent{0});
      const auto coordinate = [&](std::size_t m) {
        Extent below = 1;
        for (std::size_t i = m + 1; i < sizes.size(); ++i) below *= sizes[i];
        return rank / below % sizes[m];
      };
      for (std::size_t m = 0; m < sizes.size(); ++m) {
        if (std::holds_alternative<Shard>(placements[m])) expected = chunk(expected, sizes[m], coordinate(m));
        const auto* shard = std::get_if<StridedShard>(&placements[m]);
        if (shard != nullptr && !tp_first) expected = strided(expected, shard->split_factor, sizes[m], coordinate(m));
      }
      for (std::size_t m = sizes.size(); tp_first && m-- > 0;) {
        if (std::holds_alternative<StridedShard>(placements[m])) expected = chunk(expected, sizes[m], coordinate(m));
      }
      Indices held;
      const auto boxes = layout.boxes_of({n}, Rank{static_cast<int>(rank)});
      for (std::size_t b = 0; b < boxes.size(); ++b) {
        const Box& box = boxes[b].box;
        BOOST_TEST(boxes[b].local_offset == static_cast<Extent>(held.size()));
        BOOST_TEST((b == 0 || boxes[b - 1].box.upper(0) < box.lower(0)));  // adjacent intervals are one
        for (Extent i = box.lower(0); i < box.upper(0); ++i) held.push_back(i);
      }
      BOOST_TEST_CONTEXT(layout.to_string() << " n " << n << " rank " << rank) {
        BOOST_TEST(held == expected);
      }
      elements += held.size();
      split += boxes.size() > 1 ? 1 : 0;
    }
  }
  BOOST_TEST(elements > 10'000U);
  BOOST_TEST(split > 500U);
}

BOOST_AUTO_TEST_SUITE_END()
