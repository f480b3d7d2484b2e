// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shardwire::memory {

/// How a copy writes.
enum class Stores {
  cached,     ///< the target is read again soon
  streaming,  ///< past the caches, where runs are long enough: saves reading the target before it is overwritten
};

inline constexpr std::size_t line_bytes = 64;

/// Copies ranges, several side by side: prefetchers begin anew with every run and every page, and one range at a time
/// has too few cache misses under way to hide that. Where the processor has no streaming stores, ordinary ones do.
/// Requires: nothing overlaps. Threads: one. Ownership: ranges are borrowed until finish().
class RangeCopier {
 public:
  explicit RangeCopier(Stores stores) : stores_(stores) {}
  RangeCopier(const RangeCopier&) = delete;
  RangeCopier& operator=(const RangeCopier&) = delete;

  void add(std::byte* target, const std::byte* source, std::size_t size) {
    const std::size_t head = std::min(size, -reinterpret_cast<std::uintptr_t>(target) % line_bytes);
    const std::size_t lines = (size - head) / line_bytes;
    const std::size_t tail = head + lines * line_bytes;
    if (head > 0) std::memcpy(target, source, head);
    if (tail < size) std::memcpy(target + tail, source + tail, size - tail);
    for (std::size_t first = 0; first < lines; first += part_lines) {
      const std::size_t at = head + first * line_bytes;
      parts_[count_++] = {source + at, target + at, std::min(part_lines, lines - first)};
      if (count_ == parts_.size()) copy_first_half();
    }
  }
  /// Copies what is left. Only then may another thread be told that the bytes are there.
  void finish();

 private:
  /// Whole lines of the target.
  struct LineRun {
    const std::byte* source;
    std::byte* target;
    std::size_t lines;
  };
  static constexpr std::size_t lanes =
      8;  // more begin to push each other out of the caches where strides are powers of 2
  static constexpr std::size_t part_lines = 16384 / line_bytes;

  void copy_first_half();
  void copy(const LineRun* now, std::size_t count, const LineRun* next, std::size_t next_count) const;
  static std::size_t fewest_lines(const LineRun* parts, std::size_t count);
  template <Stores stores>
  static void copy_side_by_side(const LineRun* now, std::size_t count, const LineRun* next, std::size_t next_count);

  Stores stores_;
  std::array<LineRun, 2 * lanes> parts_{};  // the second half is prefetched while the first is copied
  std::size_t count_ = 0;
};

}  // namespace shardwire::memory
