// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string_view>
#include <vector>

#include "geometry/layout_rule.hpp"

namespace shardwire {

/// Takes the fields of a description that may be hostile, one by one.
/// Errors: every call throws Error{invalid_argument} naming the kind and the field at fault.
class Fields {
 public:
  explicit Fields(const RuleDescription& description);
  [[nodiscard]] bool has(std::string_view name) const;
  const std::vector<Extent>& list(std::string_view name);
  /// The only value of a list.
  Extent single(std::string_view name, Extent lowest, Extent highest);
  /// To be called last: whatever was not taken is unknown, and the rule is made of `inner` others.
  void finish(std::size_t inner = 0) const;

 private:
  [[noreturn]] void refuse(std::string_view name, std::string_view why) const;

  const RuleDescription& description_;
  std::vector<bool> taken_;
};

/// `value` as T. Errors: throws Error{invalid_argument} naming `what`.
int to_int_checked(Extent value, std::string_view what);

}  // namespace shardwire
