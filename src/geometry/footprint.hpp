// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "geometry/placed_boxes.hpp"

namespace shardwire {

/// Exactly the bytes that boxes of one local buffer lie on: strided runs, not the range around them.
class Footprint {
 public:
  struct Range {
    std::uintptr_t first = 0;
    std::uintptr_t end = 0;
  };

  /// `data` is local element 0.
  Footprint(const void* data, const PlacedBoxes& boxes, ByteCount item_bytes);
  /// One contiguous range.
  Footprint(const void* data, ByteCount bytes);

  /// From the first byte to the last; {0, 0} when there is none.
  [[nodiscard]] Range bounds() const { return bounds_; }
  /// Contiguous ranges that it consists of; adjacent ones may count apart. Saturates.
  [[nodiscard]] ByteCount runs() const { return runs_; }
  void each_run(const std::function<void(Range)>& visit) const;

 private:
  struct Block {  // equal runs, `counts[d]` times `strides[d]` bytes apart
    std::uintptr_t first = 0;
    ByteCount run_bytes = 0;
    std::size_t dims = 0;
    std::array<ByteCount, max_dims> counts{};
    std::array<ByteCount, max_dims> strides{};
  };
  void add(const Block& block);

  std::vector<Block> blocks_;
  Range bounds_;
  ByteCount runs_ = 0;
};

/// A part that takes memory, to be compared with others.
struct Claim {
  Footprint footprint;
  bool written = false;
};

/// Two claims that share a byte. Both are the same where the parts of one claim do.
struct Conflict {
  std::size_t written = 0;
  std::size_t other = 0;
  std::uintptr_t address = 0;
  bool exact = true;  ///< false: there are too many runs to compare, only the ranges around them are known to meet
};

/// More contiguous runs than this in claims that interleave are not compared one by one.
inline constexpr ByteCount max_compared_runs = 4u << 20;

/// Calls `visit` once for each two claims that share a byte and of which one is written at least; when both are, the pair
/// comes once, in either order. Stops when `visit` returns false. The order of calls depends on addresses alone.
/// Cost: O(n log n) in the claims, and in the runs of those that interleave.
void find_conflicts(std::span<const Claim> claims, const std::function<bool(const Conflict&)>& visit);

}  // namespace shardwire
