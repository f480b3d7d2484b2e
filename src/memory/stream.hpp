// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "memory/kernel_choice.hpp"
#include "memory/kernels.hpp"

namespace shardwire::memory {

/// Copies ranges with one kernel, several at a time: it copies the partial lines at their ends itself and splits long
/// ranges into parts.
/// Requires: nothing overlaps. Threads: one. Ownership: ranges are borrowed until finish().
class RangeCopier {
 public:
  explicit RangeCopier(const CopyKernel& kernel) : kernel_(&kernel) {}
  RangeCopier(const RangeCopier&) = delete;
  RangeCopier& operator=(const RangeCopier&) = delete;

  /// Longer ranges are split into parts of this size.
  static constexpr std::size_t part_bytes = 16384;

  /// `kept`, if given, receives the same bytes; the source is not read a second time.
  void add(std::byte* target, const std::byte* source, std::size_t size, std::byte* kept = nullptr) {
    const std::size_t head = std::min(size, -reinterpret_cast<std::uintptr_t>(target) % line_bytes);
    const std::size_t lines = (size - head) / line_bytes;
    const std::size_t tail = head + lines * line_bytes;
    if (head > 0) copy_bytes(target, source, head, kept);
    if (tail < size) copy_bytes(target + tail, source + tail, size - tail, kept == nullptr ? nullptr : kept + tail);
    for (std::size_t first = 0; first < lines; first += part_bytes / line_bytes) {
      const std::size_t at = head + first * line_bytes;
      parts_[count_++] = {source + at, target + at, kept == nullptr ? nullptr : kept + at,
                          std::min(part_bytes / line_bytes, lines - first)};
      if (count_ == parts_.size()) copy_first_half();
    }
  }
  /// Requires: nothing was added since finish().
  void use(const CopyKernel& kernel) { kernel_ = &kernel; }
  /// Copies the remaining ranges. Only then may another thread be told that the bytes are there.
  void finish();

 private:
  static constexpr std::size_t lanes = 8;  // with power-of-two strides, more evict each other from the caches

  void copy_first_half();

  const CopyKernel* kernel_;
  std::array<LineRun, 2 * lanes> parts_{};  // the second half may be prefetched while the first is copied
  std::size_t count_ = 0;
};

/// Copies ranges with streaming stores, using the fastest kernel. Until that is known, each slice of a copy is a sample
/// of another kernel. Requires, threads, ownership: as RangeCopier.
class StreamingCopier {
 public:
  static constexpr std::size_t slice_bytes = 512u << 10;  ///< shorter slices are disturbed by those before them

  /// For `bytes` in total. Ownership: `choice` is borrowed.
  StreamingCopier(KernelChoice& choice, CopyClass kind, std::size_t bytes);

  void add(std::byte* target, const std::byte* source, std::size_t size, std::byte* kept = nullptr) {
    if (!measuring_) return copier_.add(target, source, size, kept);
    add_measured(target, source, size, kept);
  }
  void finish() { copier_.finish(); }

 private:
  /// Processor time of this thread at the start of a slice, and counters of disturbances.
  struct Start {
    std::chrono::nanoseconds used{};
    long page_faults = 0;
  };
  static Start start();
  void add_measured(std::byte* target, const std::byte* source, std::size_t size, std::byte* kept);
  void end_slice();

  KernelChoice& choice_;
  CopyClass kind_;
  bool measuring_;
  const CopyKernel* kernel_;
  RangeCopier copier_;
  std::size_t slice_left_ = slice_bytes;
  Start start_;
};

}  // namespace shardwire::memory
