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

/// The source ranks that have authority over the values of a parameter: those that hold an element of
/// one of its tensors, in any state. Tensors of one element count only if the parameter has no others, and then only
/// states whose holders are not a proper superset of another state's: ranks whose shard of the parameter is empty keep
/// a step too. If no source has such a tensor, all have authority.
/// Cost: O(tensors) once, O(ranks) per set of layouts; parameters with the same layout share the answer.
class Authority {
 public:
  /// Ownership: borrows both. Requires: `names` are those of `from`.
  Authority(const JobLayout& from, const NameClasses& names);

  /// By index in the source layout; empty: every rank has authority. `name` is one of names.name_of().
  [[nodiscard]] const std::vector<bool>& of(std::string_view name);

 private:
  /// Section, layout number, shape: such tensors lie on the same ranks. The state is set only for tensors of one
  /// element, where it matters.
  using Alike = std::tuple<std::size_t, std::uint32_t, Extents, std::string_view>;
  using Ranks = std::vector<bool>;  // by index in the source layout

  void add_holders(const Alike& alike, Ranks& ranks) const;
  [[nodiscard]] Ranks holders_of_any(const std::vector<Alike>& tensors) const;
  [[nodiscard]] Ranks holders_of_least(const std::vector<Alike>& tensors) const;
  const Ranks& remember(const std::vector<Alike>& tensors, bool one_element);

  const JobLayout& from_;
  LayoutTable layouts_;
  std::unordered_map<std::string_view, std::vector<Alike>> tensors_;
  std::unordered_map<std::string_view, std::vector<Alike>> one_element_;
  std::map<std::vector<Alike>, Ranks> ranks_;
};

}  // namespace shardwire
