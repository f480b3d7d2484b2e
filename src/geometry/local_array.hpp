// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "geometry/layout_rule.hpp"

namespace shardwire {

/// Maximum number of boxes of one tensor per rank: far above any job, small enough to keep a hostile description cheap.
inline constexpr ElementCount max_boxes_per_rank = ElementCount{1} << 18;

/// Product or sum, or the largest number if that exceeds 64 bits. Requires: neither is negative.
ElementCount saturating_product(ElementCount a, ElementCount b);
ElementCount saturating_sum(ElementCount a, ElementCount b);

/// The position of a box in the local array that contains it.
Box image_of(const PlacedBox& placed);

/// Shape of the row-major array that `boxes` of one rank fill; all zeros if there are none.
/// Requires: the boxes belong to a rule with has_local_array().
Extents local_array_of(std::span<const PlacedBox> boxes, std::size_t dims);

/// The tensor positions of `inner`, which are boxes of the local array that `outer` fills. A box is split where the
/// array comes from different boxes, in local order. The local positions are those of `inner`.
std::vector<PlacedBox> through(std::span<const PlacedBox> outer, std::span<const PlacedBox> inner);

/// Errors: throws Error{invalid_argument} that names the kind if no other layout can split a rank's part under `outer`.
void require_local_array(const Layout& outer);

}  // namespace shardwire
