// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "shardwire/memory.hpp"
#include "shardwire/types.hpp"

namespace shardwire::transport {

/// Where memory lies; this determines the operations of a fabric on it.
struct MemoryPlace {
  MemoryKind kind = MemoryKind::host;  ///< never MemoryKind::detect
  int device = -1;                     ///< ordinal, where kind is cuda
  bool operator==(const MemoryPlace&) const = default;
};

/// A range of memory of this process. Borrowed; the function that takes it documents for how long.
template <typename Byte>
struct BasicMemory {
  Byte* address = nullptr;
  ByteCount bytes = 0;
  MemoryPlace place{};

  [[nodiscard]] bool empty() const { return bytes == 0; }
  /// Requires: the part ends inside this range.
  [[nodiscard]] BasicMemory part(ByteCount offset_bytes, ByteCount part_bytes) const {
    return {address + offset_bytes, part_bytes, place};
  }
  /// Requires: the processor can access this memory.
  [[nodiscard]] std::span<Byte> span() const { return {address, static_cast<std::size_t>(bytes)}; }
  operator BasicMemory<const Byte>() const requires(!std::is_const_v<Byte>) { return {address, bytes, place}; }
};
using Memory = BasicMemory<std::byte>;
using ConstMemory = BasicMemory<const std::byte>;

template <typename Byte, std::size_t size>
BasicMemory<Byte> host_memory(std::span<Byte, size> bytes) {
  return {bytes.data(), bytes.size(), {}};
}
inline Memory host_memory(Bytes& bytes) {
  return host_memory(std::span(bytes));
}
inline ConstMemory host_memory(const Bytes& bytes) {
  return host_memory(std::span(bytes));
}

template <typename Byte>
ByteCount total_bytes(std::span<const BasicMemory<Byte>> ranges) {
  ByteCount total = 0;
  for (const auto& range : ranges) total += range.bytes;
  return total;
}

}  // namespace shardwire::transport
