// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "geometry/found_boxes.hpp"
#include "geometry/overlap.hpp"

namespace shardwire {

/// Finds the boxes of a tensor that some ranks hold under one layout: with the layout's own search if it has one, else
/// in an index over the boxes of all of them.
/// Ownership: borrows `layout`, `ranks` and `copies`.
class LayoutSearch {
 public:
  /// Further holders of a rank, by rank; see JobLayout::copies.
  using Copies = std::multimap<Rank, Rank>;

  /// `ranks`: ascending. `copies`: null if there are none.
  LayoutSearch(const Layout& layout, const Extents& shape, std::span<const Rank> ranks, const Copies* copies = nullptr);

  /// Calls `on_box` for the boxes that share an element with `region`, once for each holder, until it returns false.
  /// Requires: `region` is not empty and inside the shape.
  void find(const Box& region, OnBox on_box);

 private:
  struct Index {
    FoundBoxes held;
    OverlapIndex tree;  // over the entries
  };

  [[nodiscard]] bool takes_part(Rank rank) const;
  void find_ranks(const Box& region, OnBox on_box);
  void look_at_all(const Box& region, OnBox on_box) const;
  void build();

  const Layout* layout_;
  Extents shape_;
  std::span<const Rank> ranks_;
  const Copies* copies_;
  bool consecutive_;
  int asked_ = 0;
  std::unique_ptr<Index> index_;
  std::vector<std::uint32_t> hits_;
};

}  // namespace shardwire
