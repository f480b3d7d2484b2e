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

/// Which source ranks have authority over the values of a parameter (layout maths M9): those that hold an element of one of
/// its tensors, in any state. Tensors of one element say so only where the parameter has no others, and of those not the ones
/// that more ranks hold than another: a step is kept also by ranks whose shard of the parameter is empty. Where no source has
/// such a tensor, all have authority.
/// Cost: O(tensors) once, O(ranks) per set of layouts; parameters laid out alike share the answer.
class Authority {
 public:
  /// Ownership: borrows both. Requires: `names` are those of `from`.
  Authority(const JobLayout& from, const NameClasses& names);

  /// By place in the source layout; empty: every rank has authority. `name` is one of names.name_of().
  [[nodiscard]] const std::vector<bool>& of(std::string_view name);

 private:
  /// Section, number of the layout, shape: such tensors lie on the same ranks. The state only where it matters: in tensors of
  /// one element.
  using Alike = std::tuple<std::size_t, std::uint32_t, Extents, std::string_view>;
  using Ranks = std::vector<bool>;  // by place in the source layout

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
