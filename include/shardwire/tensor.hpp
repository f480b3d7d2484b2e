// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shardwire/box.hpp"
#include "shardwire/export.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Element types; opaque() makes others. Elements are moved as bytes and never converted. PyTorch's float8_e4m3fnuz is
/// f8e4m3fnuz, its float8_e8m0fnu is f8e8m0. Members send these numbers: new types are appended.
enum class DType : std::uint32_t {
  f64,
  f32,
  f16,
  bf16,
  f8e4m3,
  f8e5m2,
  i64,
  i32,
  i16,
  i8,
  u8,
  boolean,
  u64,
  u32,
  u16,
  complex128,  ///< two f64
  complex64,   ///< two f32
  f8e4m3fnuz,
  f8e5m2fnuz,
  f8e8m0,
};

/// Bytes of the largest element.
inline constexpr ByteCount max_item_bytes = 0xffff;

namespace detail {
inline constexpr ByteCount opaque_numbers = 0x10000;  // opaque(n) has the number n after this one
[[noreturn]] void refuse_item_bytes(ByteCount item_bytes);
}  // namespace detail

/// The type of elements that have no other type here: blocks of an 8-bit optimizer, pairs of 4-bit numbers, structs.
/// An opaque element is never split. Equal to no other type, even of the same size.
/// Errors: throws Error{invalid_argument} unless 1 <= item_bytes <= max_item_bytes.
constexpr DType opaque(ByteCount item_bytes) {
  if (item_bytes < 1 || item_bytes > max_item_bytes) detail::refuse_item_bytes(item_bytes);
  return DType{static_cast<std::uint32_t>(detail::opaque_numbers + item_bytes)};
}

/// Bytes of one element. Errors: throws Error{invalid_argument} for a number that is no type.
ByteCount item_size(DType dtype);
/// "f32", "bool", "opaque16", ...: the names used in case files.
std::string to_string(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);

/// Names one piece of optimizer state. The fully qualified name is the only name that crosses the wire.
struct TensorKey {
  std::string fqn;    ///< e.g. "layers.3.mlp.down_proj.weight"
  std::string state;  ///< e.g. "exp_avg"

  bool operator==(const TensorKey&) const = default;
  auto operator<=>(const TensorKey&) const = default;
};

/// "layers.3.mlp.down_proj.weight:exp_avg"
std::string to_string(const TensorKey& key);

/// A second name of a parameter, with all its states: `alias` is `fqn`. Shared parameters (lm_head tied to
/// embed_tokens) have several names and are held, and moved, once.
struct Alias {
  std::string alias;
  std::string fqn;

  bool operator==(const Alias&) const = default;
};

/// Properties of a tensor that all ranks share. `shape` is the global shape.
struct TensorSpec {
  TensorKey key;
  DType dtype{};
  Extents shape;

  bool operator==(const TensorSpec&) const = default;
};

}  // namespace shardwire
SHARDWIRE_API_END
