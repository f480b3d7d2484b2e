// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "plan/aliases.hpp"
#include "plan/layout_table.hpp"
#include "shardwire/plan.hpp"

namespace shardwire {

/// Which source ranks have a say in the values of a parameter (layout maths M9): those that hold an element of one of
/// its tensors, in any state. Where no source has such a tensor, all do.
/// Cost: O(tensors) once, O(ranks) per set of layouts; parameters laid out alike share the answer.
class Votes {
 public:
  /// Ownership: borrows both. Requires: `names` are those of `from`.
  Votes(const JobLayout& from, const NameClasses& names);

  /// By place in the source layout; empty: everybody has a vote. `name` is one of names.name_of().
  [[nodiscard]] const std::vector<bool>& of(std::string_view name);

 private:
  /// Section, number of the layout, shape: such tensors lie on the same ranks.
  using Alike = std::tuple<std::size_t, std::uint32_t, Extents>;

  const JobLayout& from_;
  LayoutTable layouts_;
  std::unordered_map<std::string_view, std::vector<Alike>> tensors_;
  std::map<std::vector<Alike>, std::vector<bool>> votes_;
};

}  // namespace shardwire
