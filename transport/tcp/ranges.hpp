// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>

#include "transport/transport.hpp"

// The ranges of a payload, and their conversion to the kernel's vectors.
namespace shardwire::transport::tcp {

/// Maximum of one message. Long lists are not slower here, but there must be a limit.
inline constexpr std::size_t max_ranges = 65536;

/// The arguments of one vectored system call, in order.
class IoVectors {
 public:
  /// Per call; Linux allows 1024 (IOV_MAX).
  static constexpr std::size_t capacity = 1024;

  void clear() {
    count_ = 0;
    bytes_ = 0;
  }
  /// Requires: not full.
  void add(void* base, std::size_t bytes) {
    entries_[count_++] = {base, bytes};
    bytes_ += bytes;
  }
  [[nodiscard]] std::size_t room() const { return capacity - count_; }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] ByteCount bytes() const { return bytes_; }
  [[nodiscard]] iovec* data() { return entries_.data(); }

 private:
  std::array<iovec, capacity> entries_;
  std::size_t count_ = 0;
  ByteCount bytes_ = 0;
};

/// The position of a byte in a list of ranges.
struct RangeCursor {
  std::size_t range = 0;
  ByteCount offset = 0;  ///< of the byte in the whole payload
};

/// Ranges of memory in their order. Empty ranges are dropped, adjacent ones merged. Borrows the memory.
class Ranges {
 public:
  Ranges() = default;
  template <typename Byte>
  explicit Ranges(std::span<const BasicMemory<Byte>> ranges) {
    entries_.reserve(ranges.size());
    // iovec has no constant form; memory to be sent is only read.
    for (const auto& range : ranges) append(const_cast<std::byte*>(range.address), range.bytes);
  }

  [[nodiscard]] ByteCount bytes() const { return entries_.empty() ? 0 : entries_.back().end; }
  /// Cost: logarithmic.
  [[nodiscard]] RangeCursor at(ByteCount offset) const;
  /// Adds the bytes from `from` to `end` while there is room, and returns their number.
  ByteCount fill(RangeCursor from, ByteCount end, IoVectors& out) const;
  /// Cost: the number of ranges passed.
  void advance(RangeCursor& cursor, ByteCount bytes) const;
  /// Copies bytes into the ranges from that position.
  void write(RangeCursor at, ByteView bytes) const;

 private:
  struct Entry {
    std::byte* base;
    ByteCount end;  // in the whole payload
  };
  void append(std::byte* base, ByteCount bytes);
  [[nodiscard]] ByteCount begin_of(std::size_t range) const { return range == 0 ? 0 : entries_[range - 1].end; }

  std::vector<Entry> entries_;
};

}  // namespace shardwire::transport::tcp
