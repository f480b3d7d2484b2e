// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "geometry/layout_rule.hpp"

namespace shardwire {

/// Boxes that one rank may have of one tensor: far above any job, small enough to keep a hostile description cheap.
inline constexpr ElementCount max_boxes_per_rank = ElementCount{1} << 18;

/// Product or sum, or the largest number where that leaves 64 bits. Requires: neither is negative.
ElementCount saturating_product(ElementCount a, ElementCount b);
ElementCount saturating_sum(ElementCount a, ElementCount b);

/// Where a box lies in the local array that it is a part of.
Box image_of(const PlacedBox& placed);

/// Shape of the row-major array that `boxes` of one rank fill; all zeros when there are none.
/// Requires: they are of a rule that has_local_array().
Extents local_array_of(std::span<const PlacedBox> boxes, std::size_t dims);

/// Where `inner`, boxes of the local array that `outer` fills, lie in the tensor: split where the array comes from
/// different boxes, in local order. Their local places are those of `inner`.
std::vector<PlacedBox> through(std::span<const PlacedBox> outer, std::span<const PlacedBox> inner);

/// Errors: throws Error{invalid_argument} naming the kind when no other layout can cut what a rank holds under `outer`.
void require_local_array(const Layout& outer);

}  // namespace shardwire
