// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "memory/stream.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory {

/// One n-d copy between two strided arrays of the same element size, with as few and as long runs as both sides allow:
/// dims that are contiguous on both sides are merged. All units are bytes.
class StridedCopy {
 public:
  /// Copies `box` (global) from the source's local buffer to the target's. Requires: both placed boxes contain `box`.
  /// Errors: throws Error{invalid_argument} for a box outside either side, a negative stride or offset, or a byte
  ///         offset that exceeds 64 bits.
  StridedCopy(const Box& box, const PlacedBox& source, const PlacedBox& target, ByteCount item_bytes);

  [[nodiscard]] ByteCount run_bytes() const { return run_bytes_; }
  [[nodiscard]] ByteCount runs() const { return runs_; }
  [[nodiscard]] ByteCount bytes() const { return run_bytes_ * runs_; }
  /// Byte range [first, past) that the copy touches on each side, relative to the local buffer: for bounds checks.
  struct Span {
    ByteCount first = 0;
    ByteCount end = 0;
  };
  [[nodiscard]] Span source_span() const { return {source_offset_, source_end_}; }
  [[nodiscard]] Span target_span() const { return {target_offset_, target_end_}; }

  /// Copies runs [first_run, first_run + count). `source` and `target` point at local element 0 of the buffers.
  /// Requires: the buffers do not overlap. Errors: throws Error{invalid_argument} past the last run.
  void run(const std::byte* source, std::byte* target, ByteCount first_run, ByteCount count,
           Stores stores = Stores::cached) const;
  void run_all(const std::byte* source, std::byte* target, Stores stores = Stores::cached) const {
    run(source, target, 0, runs_, stores);
  }
  /// Whether its runs are long enough for streaming stores.
  [[nodiscard]] bool is_streamed(const std::byte* target) const;

  /// The two halves of a copy through dense memory of bytes() bytes, in row-major order: from the source into it, and
  /// from there to the target.
  [[nodiscard]] StridedCopy into_dense() const;
  [[nodiscard]] StridedCopy from_dense() const;
  /// The same elements in the opposite direction.
  [[nodiscard]] StridedCopy reversed() const;
  /// Splits into row-major consecutive copies of at most `limit_bytes` each, also within runs, and appends them to
  /// `parts`.
  /// Requires: limit_bytes > 0.
  void split(ByteCount limit_bytes, std::vector<StridedCopy>& parts) const;

  /// Calls visit(source_offset, target_offset, n) for groups of n runs that are source_step() and target_step() apart,
  /// in row-major order. Divides once at the start, never per run. Requires: the runs exist.
  template <typename Visit>
  void visit_rows(ByteCount first_run, ByteCount count, Visit&& visit) const;
  /// Calls visit(source_offset, target_offset) for each run, in row-major order.
  template <typename Visit>
  void visit_runs(Visit&& visit) const;
  [[nodiscard]] ByteCount source_step() const { return outer_dims_ == 0 ? 0 : source_strides_[outer_dims_ - 1]; }
  [[nodiscard]] ByteCount target_step() const { return outer_dims_ == 0 ? 0 : target_strides_[outer_dims_ - 1]; }

  /// One dim around the runs, for callers that copy them in their own way; outermost first.
  struct Dim {
    ByteCount count = 0;
    ByteCount source_stride = 0;
    ByteCount target_stride = 0;
  };
  [[nodiscard]] std::size_t outer_dims() const { return outer_dims_; }
  /// Requires: dim < outer_dims().
  [[nodiscard]] Dim outer_dim(std::size_t dim) const {
    return {counts_[dim], source_strides_[dim], target_strides_[dim]};
  }

 private:
  void check_runs(ByteCount first_run, ByteCount count) const;
  using Strides = std::array<ByteCount, max_dims>;
  void make_dense(ByteCount& offset, ByteCount& past, Strides& strides) const;
  /// The part of `count` indices of its outermost dim from `first` on; of its run if it has no dims.
  [[nodiscard]] StridedCopy part(ByteCount first, ByteCount count) const;
  void update_spans();

  ByteCount run_bytes_ = 0;
  ByteCount runs_ = 0;
  ByteCount source_offset_ = 0;
  ByteCount target_offset_ = 0;
  ByteCount source_end_ = 0;
  ByteCount target_end_ = 0;
  std::size_t outer_dims_ = 0;  ///< remaining dims around one run, outermost first
  std::array<ByteCount, max_dims> counts_{};
  Strides source_strides_{};
  Strides target_strides_{};
};

/// A dense row-major array of the box, as in a staging slot.
PlacedBox packed(const Box& box);

template <typename Visit>
void StridedCopy::visit_runs(Visit&& visit) const {
  visit_rows(0, runs_, [&](ByteCount from, ByteCount to, ByteCount count) {
    for (ByteCount i = 0; i < count; ++i) visit(from + i * source_step(), to + i * target_step());
  });
}

template <typename Visit>
void StridedCopy::visit_rows(ByteCount first_run, ByteCount count, Visit&& visit) const {
  check_runs(first_run, count);
  if (count == 0) return;
  if (outer_dims_ == 0) return visit(source_offset_, target_offset_, ByteCount{1});

  std::array<ByteCount, max_dims> index{};
  ByteCount source = source_offset_;
  ByteCount target = target_offset_;
  for (std::size_t dim = outer_dims_; dim-- > 0;) {
    index[dim] = first_run % counts_[dim];
    first_run /= counts_[dim];
    source += index[dim] * source_strides_[dim];
    target += index[dim] * target_strides_[dim];
  }
  const std::size_t last = outer_dims_ - 1;
  while (true) {
    const ByteCount n = std::min(count, counts_[last] - index[last]);
    visit(source, target, n);
    count -= n;
    if (count == 0) return;
    source -= index[last] * source_strides_[last];
    target -= index[last] * target_strides_[last];
    index[last] = 0;
    for (std::size_t dim = last; dim-- > 0;) {
      source += source_strides_[dim];
      target += target_strides_[dim];
      if (++index[dim] < counts_[dim]) break;
      source -= counts_[dim] * source_strides_[dim];
      target -= counts_[dim] * target_strides_[dim];
      index[dim] = 0;
    }
  }
}

}  // namespace shardwire::memory
