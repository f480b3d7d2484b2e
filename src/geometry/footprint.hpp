// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "geometry/placed_boxes.hpp"

namespace shardwire {

/// The exact bytes that boxes of one local buffer occupy: strided runs, without the gaps between them.
class Footprint {
 public:
  struct Range {
    std::uintptr_t first = 0;
    std::uintptr_t end = 0;
  };

  /// `data` is the address of local element 0.
  Footprint(const void* data, const PlacedBoxes& boxes, ByteCount item_bytes);
  /// One contiguous range.
  Footprint(const void* data, ByteCount bytes);

  /// From the first byte to the last; {0, 0} if it is empty.
  [[nodiscard]] Range bounds() const { return bounds_; }
  /// Number of contiguous ranges; adjacent ranges may count separately. Saturates.
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

/// A part that occupies memory, to be compared with others.
struct Claim {
  Footprint footprint;
  bool written = false;
};

/// Two claims that share a byte. Both are the same claim if parts of one claim overlap.
struct Conflict {
  std::size_t written = 0;
  std::size_t other = 0;
  std::uintptr_t address = 0;
  bool exact = true;  ///< false: too many runs to compare; only their bounds are known to overlap
};

/// Interleaved claims with more contiguous runs than this are not compared run by run.
inline constexpr ByteCount max_compared_runs = 4u << 20;

/// Calls `visit` once for each two claims that share a byte and of which at least one is written; if both are written,
/// the pair comes once, in either order. Stops when `visit` returns false. The order of calls depends on addresses
/// alone.
/// Cost: O(n log n) in the claims, and in the runs of interleaved claims.
void find_conflicts(std::span<const Claim> claims, const std::function<bool(const Conflict&)>& visit);

}  // namespace shardwire
