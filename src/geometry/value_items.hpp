// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/value.hpp"

namespace shardwire {

/// Whether `value` is a list, a tuple or a map.
inline bool has_items(const Value& value) {
  return std::holds_alternative<ValueList>(value) || std::holds_alternative<ValueTuple>(value) ||
         std::holds_alternative<ValueMap>(value);
}

/// Calls visit(item) for each value directly inside a list, a tuple or a map, in order.
template <typename Visit>
void each_item(const Value& value, Visit&& visit) {
  if (const auto* list = std::get_if<ValueList>(&value)) {
    for (const Value& item : list->items) visit(item);
  } else if (const auto* tuple = std::get_if<ValueTuple>(&value)) {
    for (const Value& item : tuple->items) visit(item);
  } else if (const auto* map = std::get_if<ValueMap>(&value)) {
    for (const ValueMapItem& item : map->items()) visit(item.value);
  }
}

/// An order in which exactly those values are equivalent that == calls equal.
struct ValueLess {
  bool operator()(const Value& a, const Value& b) const;
};

}  // namespace shardwire
