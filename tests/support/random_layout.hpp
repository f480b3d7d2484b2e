// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "shardwire/layout.hpp"
#include "support/layout_oracle.hpp"

namespace shardwire::test {

using Random = std::mt19937_64;

/// From TEST_SEED, else fixed; printed, so that a failure can be reproduced.
inline std::uint64_t seed() {
  const char* given = std::getenv("TEST_SEED");
  const std::uint64_t value = given != nullptr ? std::stoull(given) : 20240613;
  std::cout << "TEST_SEED=" << value << std::endl;
  return value;
}

inline int pick(Random& random, int lowest, int highest) {
  return static_cast<int>(lowest + static_cast<int>(random() % static_cast<std::uint64_t>(highest - lowest + 1)));
}

/// 0 to 5 dims with small odd extents, some of them empty.
inline Extents random_shape(Random& random) {
  Extents shape = Extents::filled(static_cast<std::size_t>(pick(random, 0, 5)), 1);
  const int largest = shape.size() <= 1 ? 30 : shape.size() <= 3 ? 9 : 5;
  for (Extent& extent : shape) extent = pick(random, 0, 40) == 0 ? 0 : pick(random, 1, largest);
  return shape;
}

inline int random_dim(Random& random, const Extents& shape) {
  const int dims = static_cast<int>(shape.size());
  return pick(random, -dims, dims - 1);
}

/// A layout and its expected meaning.
struct Sample {
  Layout layout;
  Meaning meaning;
};

/// A mesh of at most `ranks` positions on shuffled ranks; without shards for a shape without dims.
inline Sample random_mesh(Random& random, const Extents& shape, int ranks) {
  std::vector<Extent> sizes;
  int count = 1;
  for (int dims = pick(random, 1, 4); dims > 0; --dims) {
    sizes.push_back(pick(random, 1, ranks / count));
    count *= static_cast<int>(sizes.back());
  }
  const MeshOrder order = pick(random, 0, 1) == 0 ? MeshOrder::mesh : MeshOrder::tp_first;
  std::vector<Placement> placements(sizes.size());
  std::vector<Extent> later(shape.size(), 1);
  for (std::size_t m = sizes.size(); m-- > 0 && !shape.empty();) {
    const int dim = random_dim(random, shape);
    Extent& cuts = later[from_front(dim, shape)];
    switch (pick(random, 0, 3)) {
      case 0: continue;
      case 1: placements[m] = StridedShard{dim, order == MeshOrder::tp_first ? cuts : pick(random, 1, 4)}; break;
      default: placements[m] = Shard{dim};
    }
    cuts *= sizes[m];
  }
  std::vector<Rank> at;
  for (int rank = 0; rank < ranks; ++rank) at.push_back(Rank{rank});
  if (pick(random, 0, 1) == 0) std::shuffle(at.begin(), at.end(), random);
  at.resize(static_cast<std::size_t>(count));
  return {Layout::mesh(sizes, placements, order, at), mean_mesh(sizes, placements, order == MeshOrder::tp_first, at)};
}

/// Splits `box` at random into disjoint boxes.
inline void split_at_random(Random& random, const Box& box, int depth, std::vector<Box>& out) {
  if (depth == 0 || box.dims() == 0 || box.empty()) {
    out.push_back(box);
    return;
  }
  const auto dim = static_cast<std::size_t>(pick(random, 0, static_cast<int>(box.dims()) - 1));
  Box below = box;
  Box above = box;
  below.size[dim] = pick(random, 0, static_cast<int>(box.size[dim]));
  above.offset[dim] += below.size[dim];
  above.size[dim] -= below.size[dim];
  split_at_random(random, below, depth - 1, out);
  split_at_random(random, above, depth - 1, out);
}

/// Either one split whose boxes the ranks share (some boxes twice, some not at all), or one split per rank, so that
/// boxes of different ranks partly overlap. Boxes are adjacent or at separate positions, in any order of dims.
inline Sample random_boxes(Random& random, const Extents& shape, int ranks) {
  std::map<Rank, std::vector<Box>> boxes;
  PlacedBoxMap placed;
  std::vector<Box> cut;
  split_at_random(random, Box::whole(shape), 3, cut);
  const bool shared = pick(random, 0, 1) == 0;
  const bool packed = pick(random, 0, 1) == 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!shared) {
      cut.clear();
      split_at_random(random, Box::whole(shape), pick(random, 0, 3), cut);
    }
    std::shuffle(cut.begin(), cut.end(), random);
    ElementCount next = 0;
    for (const Box& box : cut) {
      if (pick(random, 0, 2) != 0) continue;
      boxes[Rank{rank}].push_back(box);
      if (box.empty()) continue;
      PlacedBox one{box, next, row_major_strides(box.size)};
      if (!packed) {
        one.local_offset += pick(random, 0, 3);
        std::vector<int> order = row_major(shape.size());
        std::shuffle(order.begin(), order.end(), random);
        ElementCount stride = pick(random, 1, 2);
        for (const int dim : order) {
          one.local_strides[static_cast<std::size_t>(dim)] = stride;
          stride = stride * box.size[static_cast<std::size_t>(dim)] + pick(random, 0, 1);
        }
      }
      placed[Rank{rank}].push_back(one);
      next = one.local_offset + 1;
      for (std::size_t dim = 0; dim < shape.size(); ++dim) next += (box.size[dim] - 1) * one.local_strides[dim];
    }
  }
  return {packed ? Layout::boxes(std::move(boxes)) : Layout::boxes(placed), mean_boxes(placed)};
}

inline Sample random_block_cyclic(Random& random, const Extents& shape, int ranks) {
  std::vector<Extent> block;
  std::vector<Extent> grid;
  std::vector<Extent> source;
  int count = 1;
  for (const Extent extent : shape) {
    block.push_back(pick(random, 1, static_cast<int>(extent) / 2 + 1));
    grid.push_back(pick(random, 1, ranks / count));
    count *= static_cast<int>(grid.back());
    source.push_back(pick(random, 0, static_cast<int>(grid.back()) - 1));
  }
  return {Layout::block_cyclic(block, grid, source), mean_block_cyclic(block, grid, source)};
}

/// A layout kind with one array per rank, for any shape with that number of dims.
inline Sample random_array(Random& random, const Extents& shape, int ranks) {
  const int kind = pick(random, 0, 6);
  if (kind == 0) return {Layout::replicated(), mean_replicated()};
  if (kind <= 2) return random_block_cyclic(random, shape, ranks);
  if (kind == 3 && !shape.empty()) {
    const int dim = random_dim(random, shape);
    const int over = pick(random, 1, ranks);
    return {Layout::chunk(dim, over), mean_chunk(dim, over)};
  }
  return random_mesh(random, shape, ranks);
}

inline Sample random_within(Random& random, const Extents& shape, int ranks) {
  const int outer_ranks = pick(random, 1, ranks);
  const Sample outer = random_array(random, shape, outer_ranks);
  const Sample inner = random_array(random, shape, ranks / outer_ranks);
  return {Layout::within(outer.layout, outer_ranks, inner.layout),
          mean_within(outer.meaning, outer_ranks, inner.meaning)};
}

/// A layout kind with one box per rank.
inline Sample random_slice(Random& random, const Extents& shape, int ranks) {
  if (shape.empty() || pick(random, 0, 2) == 0) return {Layout::replicated(), mean_replicated()};
  const int dim = random_dim(random, shape);
  return {Layout::chunk(dim, ranks), mean_chunk(dim, ranks)};
}

/// A member, of the given shape, of a flat parameter with up to five members, some of them slices.
inline Sample random_flat(Random& random, const Extents& shape, int ranks,
                          Sample (*random_outer)(Random&, const Extents&, int) = random_array) {
  const int outer_ranks = pick(random, 0, 1) == 0 ? 1 : pick(random, 1, ranks);
  const int world = pick(random, 1, ranks / outer_ranks);
  const Extent align = pick(random, 0, 1) == 0 ? 0 : pick(random, 1, 8);
  const auto count = static_cast<std::size_t>(pick(random, 1, 5));
  const auto which = static_cast<std::size_t>(pick(random, 0, static_cast<int>(count) - 1));
  std::vector<FlatMember> members(count);
  std::vector<FlatMeaning> meanings(count);
  for (std::size_t i = 0; i < count; ++i) {
    members[i].shape = i == which ? shape : random_shape(random);
    if (pick(random, 0, 1) == 0) {
      Sample outer = random_outer(random, members[i].shape, outer_ranks);
      members[i].outer = std::move(outer.layout);
      meanings[i].outer = std::move(outer.meaning);
    }
    if (pick(random, 0, 2) == 0) {
      members[i].order = row_major(members[i].shape.size());
      std::shuffle(members[i].order.begin(), members[i].order.end(), random);
    }
    meanings[i].shape = members[i].shape;
    meanings[i].order = members[i].order;
  }
  return {Layout::flat(members, world, align, outer_ranks)[which],
          mean_flat(std::move(meanings), which, world, align, outer_ranks)};
}

/// On a run of ranks, on ranks at equal steps, or on shuffled ones.
inline Sample random_on_ranks(Random& random, const Extents& shape, int ranks) {
  const int kind = pick(random, 0, 2);
  const int step = kind == 1 ? pick(random, 1, 3) : 1;
  std::vector<Rank> on;
  for (int rank = pick(random, 0, ranks - 1); rank < ranks; rank += step) on.push_back(Rank{rank});
  if (kind == 2) std::shuffle(on.begin(), on.end(), random);
  const int count = pick(random, 1, static_cast<int>(on.size()));
  on.resize(static_cast<std::size_t>(count));
  const Sample inner = pick(random, 0, 1) == 0 ? random_flat(random, shape, count) : random_array(random, shape, count);
  return {kind == 0 ? Layout::on_ranks(inner.layout, on.front(), count) : Layout::on_ranks(inner.layout, on),
          mean_on_ranks(inner.meaning, on)};
}

inline Sample random_packed(Random& random, const Extents& shape, int ranks) {
  const int kind = pick(random, 0, 3);
  const Sample inner = kind == 0   ? random_boxes(random, shape, ranks)
                       : kind == 1 ? random_array(random, shape, ranks)
                       : kind == 2 ? random_within(random, shape, ranks)
                                   : random_flat(random, shape, ranks, random_slice);
  return {Layout::packed(inner.layout), mean_packed(inner.meaning)};
}

/// Any kind.
inline Sample random_sample(Random& random, const Extents& shape, int ranks) {
  switch (pick(random, 0, 9)) {
    case 0:
    case 1: return random_boxes(random, shape, ranks);
    case 2:
    case 3: return random_flat(random, shape, ranks);
    case 4: return random_within(random, shape, ranks);
    case 5: return random_on_ranks(random, shape, ranks);
    case 6: return random_packed(random, shape, ranks);
    default: return random_array(random, shape, ranks);
  }
}

inline Layout random_layout(Random& random, const Extents& shape, int ranks) {
  return random_sample(random, shape, ranks).layout;
}

}  // namespace shardwire::test
