// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/box.hpp"
#include "shardwire/c/types.h"
#include "shardwire/error.hpp"
#include "shardwire/tensor.hpp"

/// Arguments of callers as C++ values, and back. All functions throw Error{invalid_argument} for wrong arguments; the
/// message names the argument.
namespace shardwire::c_api {

[[noreturn]] inline void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, why);
}

template <typename T>
T* required(T* pointer, const char* name) {
  if (pointer == nullptr) refuse(fmt::format("{} is NULL", name));
  return pointer;
}

inline std::string text(const char* given, const char* name) {
  return required(given, name);
}

inline TensorKey key_of(const char* fqn, const char* state) {
  return {text(fqn, "fqn"), text(state, "state")};
}
/// Borrows the strings of `key`.
inline shardwire_key key_of(const TensorKey& key) {
  return {key.fqn.c_str(), key.state.c_str()};
}

template <typename T>
std::span<const T> array(const T* data, std::size_t count, const char* name) {
  if (count > 0) required(data, name);
  return {data, count};
}
template <typename T>
std::vector<T> list(const T* data, std::size_t count, const char* name) {
  const std::span<const T> given = array(data, count, name);
  return {given.begin(), given.end()};
}

inline Extents extents(const std::int64_t* data, std::size_t dims, const char* name) {
  return Extents(array(data, dims, name));
}

inline Bytes bytes(const void* data, std::size_t size, const char* name) {
  return list(static_cast<const std::byte*>(data), size, name);
}

inline std::vector<Rank> ranks(const std::int32_t* data, std::size_t count, const char* name) {
  std::vector<Rank> out;
  for (const std::int32_t rank : array(data, count, name)) out.push_back(Rank{rank});
  return out;
}
inline std::vector<std::int32_t> numbers(std::span<const Rank> ranks) {
  std::vector<std::int32_t> out;
  for (const Rank rank : ranks) out.push_back(to_int(rank));
  return out;
}

/// An enumerator of first..last.
template <typename Enum>
Enum enumerator(std::int32_t number, Enum first, Enum last, const char* name) {
  const auto lower = static_cast<std::int32_t>(first), upper = static_cast<std::int32_t>(last);
  if (number < lower || number > upper) refuse(fmt::format("{} is {}, not {}..{}", name, number, lower, upper));
  return static_cast<Enum>(number);
}
template <typename Enum>
Enum enumerator(std::int32_t number, Enum last, const char* name) {
  return enumerator(number, Enum{}, last, name);
}

/// Times of a century and more stand for no limit: a later deadline would leave 64 bits.
inline std::chrono::nanoseconds duration(std::int64_t ns) {
  return std::min<std::chrono::nanoseconds>(std::chrono::nanoseconds(ns), std::chrono::hours(24 * 36525));
}

template <typename List>
auto& entry(List& list, std::size_t index, const char* name) {
  if (index >= list.size()) refuse(fmt::format("{} {} is out of range: there are {}", name, index, list.size()));
  return list[index];
}

inline Box box_of(const shardwire_box& box) {
  return {extents(box.offset, box.dims, "offset"), extents(box.extent, box.dims, "extent")};
}
inline shardwire_box box_of(const Box& box) {
  shardwire_box out{};
  out.dims = box.dims();
  std::copy(box.offset.begin(), box.offset.end(), out.offset);
  std::copy(box.size.begin(), box.size.end(), out.extent);
  return out;
}

/// Writes as snprintf() does: at most `size` bytes with a NUL. Returns the length of the whole text.
inline std::size_t write_text(std::string_view from, char* to, std::size_t size) {
  if (to == nullptr || size == 0) return from.size();
  const std::size_t written = std::min(from.size(), size - 1);
  std::memcpy(to, from.data(), written);
  to[written] = '\0';
  return from.size();
}

}  // namespace shardwire::c_api
