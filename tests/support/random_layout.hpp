// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "shardwire/layout.hpp"

namespace shardwire::test {

using Random = std::mt19937_64;

/// From TEST_SEED, else fixed; printed, so that a failure can be run again.
inline std::uint64_t seed() {
  const char* given = std::getenv("TEST_SEED");
  const std::uint64_t value = given != nullptr ? std::stoull(given) : 20240613;
  std::cout << "TEST_SEED=" << value << std::endl;
  return value;
}

inline int pick(Random& random, int lowest, int highest) {
  return static_cast<int>(lowest + static_cast<int>(random() % static_cast<std::uint64_t>(highest - lowest + 1)));
}

/// 0 to 5 dims, small odd extents, now and then an empty one.
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

/// A mesh of at most `ranks` positions on shuffled ranks. Requires: shape has a dim.
inline Layout random_mesh(Random& random, const Extents& shape, int ranks) {
  std::vector<Extent> sizes;
  int count = 1;
  for (int dims = pick(random, 1, 4); dims > 0; --dims) {
    sizes.push_back(pick(random, 1, ranks / count));
    count *= static_cast<int>(sizes.back());
  }
  const MeshOrder order = pick(random, 0, 1) == 0 ? MeshOrder::mesh : MeshOrder::tp_first;
  std::vector<Placement> placements(sizes.size());
  std::vector<Extent> later(shape.size(), 1);
  for (std::size_t m = sizes.size(); m-- > 0;) {
    const int dim = random_dim(random, shape);
    Extent& cuts = later[static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) : dim)];
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
  return Layout::mesh(sizes, placements, order, at);
}

/// Cuts `box` at random into disjoint boxes.
inline void cut_at_random(Random& random, const Box& box, int depth, std::vector<Box>& out) {
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
  cut_at_random(random, below, depth - 1, out);
  cut_at_random(random, above, depth - 1, out);
}

/// Either one cut that ranks share out (some boxes twice, some not at all), or a cut of its own for each rank, so that
/// boxes of different ranks overlap in part.
inline Layout random_boxes(Random& random, const Extents& shape, int ranks) {
  std::map<Rank, std::vector<Box>> boxes;
  std::vector<Box> cut;
  cut_at_random(random, Box::whole(shape), 3, cut);
  const bool shared = pick(random, 0, 1) == 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!shared) {
      cut.clear();
      cut_at_random(random, Box::whole(shape), pick(random, 0, 3), cut);
    }
    for (const Box& box : cut) {
      if (pick(random, 0, 2) == 0) boxes[Rank{rank}].push_back(box);
    }
  }
  return Layout::boxes(std::move(boxes));
}

inline Layout random_layout(Random& random, const Extents& shape, int ranks) {
  const int kind = shape.empty() ? pick(random, 0, 1) : pick(random, 0, 7);
  if (kind == 0) return Layout::replicated();
  if (kind <= 2) return random_boxes(random, shape, ranks);
  if (kind == 3) return Layout::chunk(random_dim(random, shape), pick(random, 1, ranks));
  return random_mesh(random, shape, ranks);
}

}  // namespace shardwire::test
