// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "shardwire/box.hpp"
#include "shardwire/export.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// A tensor that travels by value, e.g. a one-element one. Keeps dtype and shape: () and (1,) differ.
struct TensorValue {
  DType dtype{};
  Extents shape;
  Bytes bytes;  ///< volume * item size, little-endian

  bool operator==(const TensorValue&) const = default;
};

struct Value;

/// Maximum nesting of lists: [0.9, 0.95] is one deep. Catalog::add_value refuses deeper values.
inline constexpr std::size_t max_value_depth = 16;

/// Values in order, also of different kinds, e.g. betas = ValueList{{0.9, 0.95}}.
struct ValueList {
  std::vector<Value> items;

  bool operator==(const ValueList&) const;
};

/// A value that travels inside the publication instead of as boxes: None (monostate), flags, numbers, text, bytes,
/// one-element tensors, and lists of these. Kinds never convert into one another: 1 and 1.0 differ.
struct Value : std::variant<std::monostate, bool, std::int64_t, double, std::string, Bytes, TensorValue, ValueList> {
  using variant::variant;

  /// Same kind and same content. Floats are compared by their bits: NaN equals itself, 0.0 and -0.0 differ.
  bool operator==(const Value& other) const;
};

/// For people: "None", "0.1", "'adam'", "[0.9, 0.95]", "f32 () 1000"; long values are truncated.
std::string to_string(const Value& value);

/// Nesting depth of lists: 0 if `value` is no list. Looks no deeper than max_value_depth + 1.
std::size_t depth_of(const Value& value);

}  // namespace shardwire
SHARDWIRE_API_END
