// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/device_copy/host_device.hpp"
#include "memory/device_copy/table.hpp"
#include "memory/tree_digest.hpp"
#include "support/digest128.hpp"

namespace shardwire::memory {

/// The bytes that a copy reads, row-major, from the beginning of a leaf of its tree digest. One thread finds it by
/// division; others only multiply.
class LeafStream {
 public:
  /// Leaf `number` of the table. Requires: it exists.
  SHARDWIRE_HOST_DEVICE void find(const TableView& table, std::uint64_t number) {
    const std::uint64_t index = find_copy(table.first_leaves(), table.size().copies, number);
    const TableCopy& copy = table.copies()[index];
    source_ = table.source_of(copy);
    run_bytes_ = copy.run_bytes;
    grain_ = copy.source_grain;
    const std::uint64_t begin = (number - table.first_leaves()[index]) * leaf_bytes;
    const std::uint64_t run = begin / run_bytes_.value();
    skipped_ = begin - run * run_bytes_.value();
    first_.find(table, copy, run);
    const std::uint64_t left = copy.runs * run_bytes_.value() - begin;
    length_ = static_cast<std::uint32_t>(left < leaf_bytes ? left : leaf_bytes);
  }

  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint32_t length() const { return length_; }
  /// Requires: at < length().
  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint8_t byte(std::uint32_t at) const {
    return load<std::uint8_t>(place(at).address);
  }
  /// Requires: at + 8 <= length(), and `at` is a multiple of the common alignment of all runs.
  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint64_t word(std::uint32_t at) const {
    if (grain_ == 8) return load<std::uint64_t>(place(at).address);
    if (grain_ == 4) return gathered<std::uint32_t>(at);
    return word_of_less(at);
  }

 private:
  struct Place {
    const std::byte* address = nullptr;
    std::uint64_t left = 0;  ///< remaining bytes of the run
  };
  [[nodiscard]] SHARDWIRE_HOST_DEVICE Place place(std::uint32_t at) const {
    const std::uint64_t past = skipped_ + at;
    const std::uint64_t run = run_bytes_.quotient(past);
    const std::uint64_t within = past - run * run_bytes_.value();
    return {source_ + first_.offset(run).source + within, run_bytes_.value() - within};
  }
  // A separate function: very few tensors need it, and it would cost all others registers.
  [[nodiscard]] SHARDWIRE_HOST_DEVICE SHARDWIRE_NOINLINE std::uint64_t word_of_less(std::uint32_t at) const {
    return grain_ == 2 ? gathered<std::uint16_t>(at) : gathered<std::uint8_t>(at);
  }
  template <typename Unit>
  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint64_t gathered(std::uint32_t at) const {
    const Place first = place(at);
    constexpr unsigned units = sizeof(std::uint64_t) / sizeof(Unit);
    const bool in_one = first.left >= sizeof(std::uint64_t);
    std::uint64_t word = 0;
    SHARDWIRE_UNROLL
    for (unsigned unit = 0; unit < units; ++unit) {
      const unsigned skip = unit * sizeof(Unit);
      const std::byte* const address = in_one ? first.address + skip : place(at + skip).address;
      word |= std::uint64_t{load<Unit>(address)} << (8 * skip);
    }
    return word;
  }

  const std::byte* source_ = nullptr;
  SmallDivisor run_bytes_;
  std::uint64_t skipped_ = 0;  ///< of the first run
  RunPosition first_;
  std::uint32_t length_ = 0;
  unsigned grain_ = 1;
};

/// Digests of leaves, one after the other.
class LeafDigests {
 public:
  SHARDWIRE_HOST_DEVICE LeafDigests(const Digest128* first, std::uint64_t count)
      : bytes_(reinterpret_cast<const std::byte*>(first)), length_(count * sizeof(Digest128)) {}

  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint64_t length() const { return length_; }
  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint8_t byte(std::uint64_t at) const {
    return load<std::uint8_t>(bytes_ + at);
  }
  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint64_t word(std::uint64_t at) const {
    return load<std::uint64_t>(bytes_ + at);
  }

 private:
  const std::byte* bytes_;
  std::uint64_t length_;
};

}  // namespace shardwire::memory
