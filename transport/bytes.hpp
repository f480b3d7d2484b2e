// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

#include "transport/transport.hpp"

// Fixed-size records inside addresses and keys. A record is its own encoding: the session compares versions first, so
// both ends run the same build on the same kind of machine.
namespace shardwire::transport {

template <typename T>
concept Record = std::is_trivially_copyable_v<T>;

template <Record T>
void append(Bytes& out, const T& record) {
  for (const std::byte byte : std::as_bytes(std::span(&record, 1))) out.push_back(byte);
}

/// Resize, then copy: GCC 12 mistakes an insert() after a record for an overrun and warns.
inline void append_bytes(Bytes& out, ByteView bytes) {
  const std::size_t before = out.size();
  out.resize(before + bytes.size());
  std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<std::ptrdiff_t>(before));
}

/// Removes the record from the front of `in` and returns it. Returns nothing if `in` is too short.
template <Record T>
std::optional<T> take(ByteView& in) {
  if (in.size() < sizeof(T)) return std::nullopt;
  T record;
  std::memcpy(&record, in.data(), sizeof(T));
  in = in.subspan(sizeof(T));
  return record;
}

/// Appends a checksum of the contents of `out`, and removes it again. UCX reads its addresses and keys without knowing
/// their length, so truncated or garbled ones must be stopped before. The checksum does not protect from a hostile
/// peer.
inline std::uint64_t checksum(ByteView bytes) {
  std::uint64_t sum = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const std::byte byte : bytes) sum = (sum ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ULL;
  return sum;
}
inline void seal(Bytes& out) {
  append(out, checksum(out));
}
inline std::optional<ByteView> unseal(ByteView in) {
  if (in.size() < sizeof(std::uint64_t)) return std::nullopt;
  ByteView tail = in.last(sizeof(std::uint64_t));
  const ByteView body = in.first(in.size() - tail.size());
  if (take<std::uint64_t>(tail) != checksum(body)) return std::nullopt;
  return body;
}

}  // namespace shardwire::transport
