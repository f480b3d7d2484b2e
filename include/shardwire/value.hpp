// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
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
struct ValueMapItem;

/// Maximum nesting of lists, tuples and maps: [0.9, 0.95] is one deep. Catalog::add_value refuses deeper values.
inline constexpr std::size_t max_value_depth = 16;

/// Values in order, also of different kinds, e.g. base_lrs = ValueList{{0.1, 0.2}}.
struct ValueList {
  std::vector<Value> items;

  bool operator==(const ValueList&) const;
};

/// The same for tuples, e.g. betas = ValueTuple{{0.9, 0.95}}. A tuple stays a tuple and differs from every list.
struct ValueTuple {
  std::vector<Value> items;

  bool operator==(const ValueTuple&) const;
};

/// Values by text key, e.g. the state of a learning-rate scheduler: ValueMap{{"last_epoch", 3}, {"_last_lr",
/// ValueList{{0.1}}}}. Ascending by key, so that ranks which fill it in different orders agree.
class ValueMap {
 public:
  ValueMap() = default;
  /// Errors: throws Error{invalid_argument} for a repeated key.
  ValueMap(std::initializer_list<ValueMapItem> items);

  /// The value of `key`; adds None if there is none. Cost: O(log n), and O(n) for a key that is not added at the end.
  Value& operator[](std::string_view key);
  /// Null if there is none. Invalid after the next new key.
  [[nodiscard]] const Value* find(std::string_view key) const;
  /// Ascending by key.
  [[nodiscard]] const std::vector<ValueMapItem>& items() const { return items_; }

  bool operator==(const ValueMap&) const;

 private:
  std::vector<ValueMapItem> items_;
};

/// A value that travels inside the publication instead of as boxes: None (monostate), flags, numbers, text, bytes,
/// one-element tensors, and lists, tuples and maps of these. Kinds never convert into one another: 1 and 1.0 differ.
struct Value : std::variant<std::monostate, bool, std::int64_t, double, std::string, Bytes, TensorValue, ValueList,
                            ValueTuple, ValueMap> {
  using variant::variant;

  /// Same kind and same content. Floats are compared by their bits: NaN equals itself, 0.0 and -0.0 differ.
  bool operator==(const Value& other) const;
};

struct ValueMapItem {
  std::string key;
  Value value;

  bool operator==(const ValueMapItem&) const = default;
};

/// For people: "None", "0.1", "'adam'", "[0.9, 0.95]", "(0.9, 0.95)", "{'last_epoch': 3}", "f32 () 1000"; long values
/// are truncated.
std::string to_string(const Value& value);

/// Nesting depth of lists, tuples and maps: 0 for any other value. Looks no deeper than max_value_depth + 1.
std::size_t depth_of(const Value& value);

}  // namespace shardwire
SHARDWIRE_API_END
