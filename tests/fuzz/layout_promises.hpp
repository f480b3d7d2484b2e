// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "fuzz/target.hpp"
#include "geometry/layout_rule.hpp"
#include "shardwire/layout.hpp"

namespace shardwire::fuzz {

/// Checks the promises of a layout that Layout::check has accepted. Looks at the first, a middle and the last rank.
inline void require_sound(const Layout& layout, const Extents& shape, int ranks) {
  constexpr ElementCount max_boxes = 256;  // compared in pairs
  layout.check(shape, ranks);
  if (layout.rule().max_boxes(shape) > max_boxes) return;
  const Box whole = Box::whole(shape);
  for (const int rank : {0, ranks / 2, ranks - 1}) {
    if (rank < 0 || rank >= ranks) continue;
    const auto boxes = layout.boxes_of(shape, Rank{rank});
    const ElementCount local = layout.local_elements(shape, Rank{rank});
    require(std::cmp_less_equal(boxes.size(), layout.rule().max_boxes(shape)), "max_boxes is an upper bound");
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      const PlacedBox& placed = boxes[i];
      require(placed.box.dims() == shape.size() && placed.local_strides.size() == shape.size(), "a box has all dims");
      require(!placed.box.empty(), "no box is empty");
      require(contains(whole, placed.box), "a box lies inside its tensor");
      ElementCount last = placed.local_offset;
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        require(placed.local_strides[dim] >= 0, "no stride is negative");
        last += (placed.box.size[dim] - 1) * placed.local_strides[dim];
      }
      require(placed.local_offset >= 0 && last < local, "a box lies inside the local buffer");
      for (std::size_t other = 0; other < i; ++other) {
        require(!intersect(boxes[other].box, placed.box), "boxes of one rank do not overlap");
      }
    }
  }
}

}  // namespace shardwire::fuzz
