// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string_view>
#include <vector>

#include "geometry/layout_rule.hpp"

namespace shardwire {

/// Extracts the fields of a possibly hostile description one by one.
/// Errors: every call throws Error{invalid_argument} that names the kind and the faulty field.
class Fields {
 public:
  explicit Fields(const RuleDescription& description);
  [[nodiscard]] bool has(std::string_view name) const;
  const std::vector<Extent>& list(std::string_view name);
  /// The value of a list that must have exactly one.
  Extent single(std::string_view name, Extent lowest, Extent highest);
  /// Call this last: it refuses fields that were not taken, and a number of inner rules other than `inner`.
  void finish(std::size_t inner = 0) const;

 private:
  [[noreturn]] void refuse(std::string_view name, std::string_view why) const;

  const RuleDescription& description_;
  std::vector<bool> taken_;
};

/// `value` as T. Errors: throws Error{invalid_argument} that names `what`.
int to_int_checked(Extent value, std::string_view what);

}  // namespace shardwire
