// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <optional>
#include <type_traits>

#include "transport/transport.hpp"

// Fixed-size records inside addresses and keys. Both ends run the same build on the same kind of machine (the session
// compares versions first), so a record is its own encoding.
namespace shardwire::transport {

template <typename T>
concept Record = std::is_trivially_copyable_v<T>;

template <Record T>
void append(Bytes& out, const T& record) {
  const std::size_t before = out.size();
  out.resize(before + sizeof(T));
  std::memcpy(out.data() + before, &record, sizeof(T));
}

/// Takes the record off the front of `in`; nothing when `in` is too short.
template <Record T>
std::optional<T> take(ByteView& in) {
  if (in.size() < sizeof(T)) return std::nullopt;
  T record;
  std::memcpy(&record, in.data(), sizeof(T));
  in = in.subspan(sizeof(T));
  return record;
}

}  // namespace shardwire::transport
