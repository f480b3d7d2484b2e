// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "geometry/strides.hpp"
#include "shardwire/layout.hpp"

namespace shardwire::test {

/// Calls visit(global index, local element) for each element of the boxes, one at a time. `boxes`: a range of PlacedBox.
template <typename Boxes, typename Visit>
void each_element(const Boxes& boxes, const Extents& shape, const Visit& visit) {
  const Extents global = row_major_strides(shape);
  for (const PlacedBox& placed : boxes) {
    const ElementCount volume = placed.box.volume();
    for (ElementCount n = 0; n < volume; ++n) {
      ElementCount rest = n;
      ElementCount local = placed.local_offset;
      ElementCount index = 0;
      for (std::size_t dim = placed.box.dims(); dim-- > 0;) {
        const ElementCount at = rest % placed.box.size[dim];
        rest /= placed.box.size[dim];
        local += at * placed.local_strides[dim];
        index += (placed.box.offset[dim] + at) * global[dim];
      }
      visit(index, local);
    }
  }
}

}  // namespace shardwire::test
