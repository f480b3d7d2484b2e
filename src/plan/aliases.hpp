// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardwire/plan.hpp"

namespace shardwire {

/// The names that denote the same parameter, by the alias tables of all sections of one side.
/// Ownership: holds views into the manifests of that side.
class NameClasses {
 public:
  NameClasses() = default;
  explicit NameClasses(const JobLayout& side);

  /// The representative of all names of a parameter, the first of them; `fqn` itself if no table contains it.
  [[nodiscard]] std::string_view name_of(std::string_view fqn) const;
  /// All names of the parameter, ascending; none if no table contains `fqn`.
  [[nodiscard]] std::span<const std::string_view> names_of(std::string_view fqn) const;

 private:
  std::unordered_map<std::string_view, std::uint32_t> class_of_;
  std::vector<std::vector<std::string_view>> classes_;
};

/// Finds the parameters that the target side wants among those that the source side holds.
class NameSearch {
 public:
  NameSearch() = default;
  NameSearch(const JobLayout& from, const JobLayout& to) : held_(from), wanted_(to) {}

  [[nodiscard]] const NameClasses& held() const { return held_; }
  [[nodiscard]] const NameClasses& wanted() const { return wanted_; }
  /// The name, one of held().name_of(), under which the source side has the parameter that the target side calls `fqn`:
  /// the same name if the source side has it, else the one among the target side's other names for the parameter.
  /// `has(name)`: whether the source side holds something under a held().name_of().
  /// Errors: throws Error{layout_mismatch} if the target side treats two parameters of the source side as one.
  template <typename Has>
  [[nodiscard]] std::optional<std::string_view> find(std::string_view fqn, Has&& has) const {
    const std::string_view own = held_.name_of(fqn);
    if (has(own)) return own;
    std::optional<std::string_view> found;
    for (const std::string_view other : wanted_.names_of(fqn)) {
      const std::string_view name = held_.name_of(other);
      if (name == own || name == found || !has(name)) continue;
      if (found) refuse_two(fqn, *found, name);
      found = name;
    }
    return found;
  }

 private:
  [[noreturn]] static void refuse_two(std::string_view fqn, std::string_view a, std::string_view b);

  NameClasses held_;
  NameClasses wanted_;
};

}  // namespace shardwire
