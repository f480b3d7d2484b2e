// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "shardwire/layout.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory {

/// One n-d copy between two strided arrays of the same element size, with as few and as long runs as both sides allow:
/// dims that are contiguous on both sides are merged. All units are bytes.
class StridedCopy {
 public:
  /// Copies `box` (global) from the source's local buffer to the target's. Requires: both boxes contain `box`.
  StridedCopy(const Box& box, const PlacedBox& source, const PlacedBox& target, ByteCount item_bytes);

  [[nodiscard]] ByteCount run_bytes() const { return run_bytes_; }
  [[nodiscard]] ByteCount runs() const { return runs_; }
  [[nodiscard]] ByteCount bytes() const { return run_bytes_ * runs_; }
  /// Byte range [first, past) that the copy touches on each side, relative to the local buffer: for bounds checks.
  struct Span {
    ByteCount first = 0;
    ByteCount past = 0;
  };
  [[nodiscard]] Span source_span() const;
  [[nodiscard]] Span target_span() const;

  /// Copies runs [first_run, first_run + count). `source` and `target` point at local element 0 of the buffers.
  void run(const std::byte* source, std::byte* target, ByteCount first_run, ByteCount count) const;
  void run_all(const std::byte* source, std::byte* target) const { run(source, target, 0, runs_); }

 private:
  ByteCount run_bytes_ = 0;
  ByteCount runs_ = 0;
  ByteCount source_offset_ = 0;
  ByteCount target_offset_ = 0;
  std::size_t outer_dims_ = 0;  ///< dims left around one run, outermost first
  std::array<ByteCount, max_dims> counts_{};
  std::array<ByteCount, max_dims> source_strides_{};
  std::array<ByteCount, max_dims> target_strides_{};
};

/// A dense row-major array of the box, as it lies in a staging slot.
PlacedBox packed(const Box& box);

}  // namespace shardwire::memory
