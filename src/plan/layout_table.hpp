// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "shardwire/plan.hpp"

namespace shardwire {

/// Assigns equal layouts and equal shapes one number, however many copies of them a job has, and remembers which pairs
/// were checked.
class LayoutTable {
 public:
  std::uint32_t id_of(const Layout& layout);
  std::uint32_t id_of(const Extents& shape);
  [[nodiscard]] const Layout& layout(std::uint32_t id) const { return layouts_[id]; }
  [[nodiscard]] const Extents& shape(std::uint32_t id) const { return shapes_[id]; }
  /// Errors: those of Layout::check, prefixed with the tensor's name.
  void check(const TensorLayout& tensor, int ranks);

 private:
  struct ShapeHash {
    std::size_t operator()(const Extents& shape) const;
  };
  struct Checked {
    std::uint64_t layout_and_shape = 0;
    int ranks = 0;
    bool operator==(const Checked&) const = default;
  };
  struct CheckedHash {
    std::size_t operator()(const Checked& key) const;
  };

  std::deque<Layout> layouts_;  // by number; searches keep addresses of them
  std::vector<Layout> kept_;    // equal to one of layouts_; keeps rules alive whose addresses by_rule_ stores
  std::deque<Extents> shapes_;  // by number
  std::pair<const LayoutRule*, std::uint32_t> last_rule_{};
  std::uint32_t last_shape_ = ~0U;
  std::unordered_map<const LayoutRule*, std::uint32_t> by_rule_;
  std::unordered_multimap<std::size_t, std::uint32_t> by_content_;
  std::unordered_map<Extents, std::uint32_t, ShapeHash> by_shape_;
  std::unordered_set<Checked, CheckedHash> checked_;
};

}  // namespace shardwire
