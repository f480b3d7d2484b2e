// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "shardwire/plan.hpp"

namespace shardwire {

/// Gives equal layouts one number, however many copies of them a job has, and remembers which were checked.
class LayoutTable {
 public:
  std::uint32_t id_of(const Layout& layout);
  [[nodiscard]] const Layout& layout(std::uint32_t id) const { return layouts_[id]; }
  /// Errors: what Layout::check throws, with the tensor's name in front.
  void check(const TensorLayout& tensor, int ranks);

 private:
  std::vector<Layout> layouts_;  // by number
  std::vector<Layout> kept_;     // equal to one of layouts_; here so that no rule dies while by_rule_ knows its address
  std::unordered_map<const LayoutRule*, std::uint32_t> by_rule_;
  std::unordered_multimap<std::size_t, std::uint32_t> by_content_;
  std::set<std::tuple<std::uint32_t, int, Extents>> checked_;
};

}  // namespace shardwire
