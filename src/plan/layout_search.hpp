// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "geometry/layout_rule.hpp"
#include "geometry/overlap.hpp"

namespace shardwire {

/// Finds what some ranks hold of a tensor under one layout: by the layout's own search where it has one, else in an
/// index over the boxes of all of them.
/// Ownership: borrows `layout` and `ranks`.
class LayoutSearch {
 public:
  /// `ranks`: ascending.
  LayoutSearch(const Layout& layout, const Extents& shape, std::span<const Rank> ranks);

  /// Appends the boxes that share an element with `region`. Requires: `region` is not empty and inside the shape.
  void find(const Box& region, std::vector<HeldBox>& out);

 private:
  struct Index {
    std::vector<HeldBox> held;
    OverlapIndex tree;
  };

  [[nodiscard]] bool takes_part(Rank rank) const;
  void look_at_all(const Box& region, std::vector<HeldBox>& out) const;
  void build();

  const Layout* layout_;
  Extents shape_;
  std::span<const Rank> ranks_;
  bool consecutive_;
  int asked_ = 0;
  std::optional<Index> index_;
  std::vector<std::uint32_t> hits_;
};

}  // namespace shardwire
