// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "geometry/strides.hpp"
#include "shardwire/layout.hpp"

namespace shardwire::test {

/// Calls visit(global index, local element, count, local stride) for each row of the boxes: `count` elements with consecutive
/// global indices. `boxes`: a range of PlacedBox.
template <typename Boxes, typename Visit>
void each_row(const Boxes& boxes, const Extents& shape, const Visit& visit) {
  const Extents global = row_major_strides(shape);
  for (const PlacedBox& placed : boxes) {
    const std::size_t dims = placed.box.dims();
    const ElementCount width = dims == 0 ? 1 : placed.box.size[dims - 1];
    if (width == 0) continue;
    const ElementCount rows = placed.box.volume() / width;
    for (ElementCount row = 0; row < rows; ++row) {
      ElementCount rest = row;
      ElementCount local = placed.local_offset;
      ElementCount index = dims == 0 ? 0 : placed.box.offset[dims - 1];
      for (std::size_t dim = dims; dim-- > 1;) {
        const ElementCount at = rest % placed.box.size[dim - 1];
        rest /= placed.box.size[dim - 1];
        local += at * placed.local_strides[dim - 1];
        index += (placed.box.offset[dim - 1] + at) * global[dim - 1];
      }
      visit(index, local, width, dims == 0 ? 1 : placed.local_strides[dims - 1]);
    }
  }
}

/// Calls visit(global index, local element) for each element of the boxes, one at a time.
template <typename Boxes, typename Visit>
void each_element(const Boxes& boxes, const Extents& shape, const Visit& visit) {
  each_row(boxes, shape, [&](ElementCount index, ElementCount local, ElementCount count, ElementCount stride) {
    for (ElementCount i = 0; i < count; ++i) visit(index + i, local + i * stride);
  });
}

}  // namespace shardwire::test
