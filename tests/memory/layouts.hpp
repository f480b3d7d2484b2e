// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "shardwire/layout.hpp"

// Random placements of boxes in local buffers, and a slow lookup of their elements.
namespace layouts {

using namespace shardwire;

class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t bound) { return random_() % bound; }
  Box box(std::size_t dims) {
    Box result{Extents::filled(dims, 0), Extents::filled(dims, 0)};
    for (std::size_t d = 0; d < dims; ++d) {
      result.offset[d] = static_cast<Extent>(below(50));
      result.size[d] = static_cast<Extent>(1 + below(dims > 4 ? 3 : 7));
    }
    return result;
  }
  /// A box around `inner`, with its own order of dims and gaps.
  PlacedBox place(const Box& inner) {
    PlacedBox placed{inner, static_cast<ElementCount>(below(5)), Extents::filled(inner.dims(), 0)};
    for (std::size_t d = 0; d < inner.dims(); ++d) {
      if (below(2) == 0) continue;
      const auto before =
          static_cast<Extent>(below(static_cast<std::size_t>(std::min<Extent>(3, inner.offset[d] + 1))));
      placed.box.offset[d] -= before;
      placed.box.size[d] += before + static_cast<Extent>(below(3));
    }
    std::vector<std::size_t> order(inner.dims());  // innermost first
    std::iota(order.rbegin(), order.rend(), 0);
    if (below(4) == 0) std::shuffle(order.begin(), order.end(), random_);
    Extent stride = below(4) == 0 ? 2 : 1;
    for (const std::size_t d : order) {
      placed.local_strides[d] = stride;
      stride *= placed.box.size[d];
      if (below(5) == 0) stride += static_cast<Extent>(below(4));
    }
    return placed;
  }
  std::vector<std::byte> bytes(std::size_t count) {
    std::vector<std::byte> result(count);
    for (std::size_t at = 0; at < count; at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random_();
      std::memcpy(result.data() + at, &word, std::min(sizeof word, count - at));
    }
    return result;
  }

 private:
  std::mt19937_64 random_;
};

/// Dims, and repetitions of a test, that keep buffers of elements of this size small.
inline std::size_t dims_for(int item_bytes) {
  return item_bytes <= 64 ? max_dims : 2;
}
inline int rounds_for(int item_bytes, int rounds) {
  return item_bytes <= 64 ? rounds : rounds / 10;
}

/// Local element numbers of the elements of `box`, row-major.
inline std::vector<std::size_t> elements_of(const Box& box, const PlacedBox& placed) {
  std::vector<std::size_t> result;
  for (Extent i = 0; i < box.volume(); ++i) {
    Extent rest = i;
    Extent element = placed.local_offset;
    for (std::size_t d = box.dims(); d-- > 0;) {
      element += (box.offset[d] + rest % box.size[d] - placed.box.offset[d]) * placed.local_strides[d];
      rest /= box.size[d];
    }
    result.push_back(static_cast<std::size_t>(element));
  }
  return result;
}

/// Number of elements that a buffer with this placement needs. No stride is negative.
inline std::size_t extent_of(const PlacedBox& placed) {
  Extent last = placed.local_offset;
  for (std::size_t d = 0; d < placed.box.dims(); ++d) last += (placed.box.size[d] - 1) * placed.local_strides[d];
  return static_cast<std::size_t>(last) + 1;
}

}  // namespace layouts
