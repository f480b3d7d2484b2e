// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "shardwire/value.hpp"

namespace shardwire {

/// A value that many keys may have, held once: the options of a group under each of its parameters.
/// Ownership: shared by its copies; nobody changes it.
class SharedValue {
 public:
  template <typename T>
  requires(std::convertible_to<T, Value> && !std::same_as<std::remove_cvref_t<T>, SharedValue>) SharedValue(T&& value)
      : value_(std::make_shared<const Value>(std::forward<T>(value))) {}

  const Value& operator*() const { return *value_; }
  const Value* operator->() const { return value_.get(); }
  bool operator==(const SharedValue& other) const { return value_ == other.value_ || *value_ == *other.value_; }

 private:
  std::shared_ptr<const Value> value_;  // owners: its copies
};

}  // namespace shardwire
