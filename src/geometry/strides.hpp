// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <tuple>

#include "geometry/placed_boxes.hpp"

namespace shardwire {

/// Strides of a local array that is not dense row-major: one per dim, in elements. Empty strides stand for the layout's
/// own. They apply where all of a rank's boxes lie in one n-d array (chunk, mesh, block-cyclic, replicated, a single
/// explicit or packed box), not where boxes or flat ranges follow one another.

/// Checks the strides of a caller's array and returns them in the form that place_boxes() takes: empty if they only
/// repeat the layout.
/// Errors: throws Error{layout_mismatch} for another number of dims, Error{unsupported} for a layout without one local
///         array, Error{invalid_argument} for negative strides, for strides under which two elements share an address
///         or dims interleave, and on overflow.
Extents check_strides(const Layout& layout, const Extents& shape, Rank rank, const Extents& strides);

/// The boxes of `rank` in a local array with these strides. The strides may come from a hostile peer: form and overflow
/// are checked, elements that share an address are not.
/// Errors: as above.
PlacedBoxes place_boxes(const Layout& layout, const Extents& shape, Rank rank, const Extents& strides = {});

/// Caches the boxes: states of one parameter and layers of one shape share them.
/// Requires: the layouts outlive the cache. Threads: one at a time.
class BoxCache {
 public:
  const PlacedBoxes& of(const Layout& layout, const Extents& shape, Rank rank, const Extents& strides);

 private:
  std::map<std::tuple<const LayoutRule*, Extents, Rank, Extents>, PlacedBoxes> boxes_;
};

}  // namespace shardwire
