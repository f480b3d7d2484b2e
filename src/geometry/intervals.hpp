// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "geometry/layout_rule.hpp"

namespace shardwire {

/// A half-open interval [lower, upper) of one dim.
struct Interval {
  Extent lower = 0;
  Extent upper = 0;

  [[nodiscard]] Extent size() const { return upper - lower; }
  bool operator==(const Interval&) const = default;
};

/// The part of one dim that a rank holds: non-empty intervals, ascending, never adjacent; local coordinates count
/// through them in order.
using Intervals = std::vector<Interval>;

/// Part `index` of `extent` split into `parts` as torch.chunk does. Empty parts lie at `extent`.
Interval chunk_of(Extent extent, Extent parts, Extent index);

/// Number of elements in all intervals.
Extent total_of(const Intervals& held);

/// Appends the global intervals of the local range `local` of `held` to `out`, and merges adjacent ones.
void append_slice(const Intervals& held, Interval local, Intervals& out);

/// All products of one interval per dim, placed in one row-major local array. Empty if any dim holds nothing.
std::vector<PlacedBox> product_of(std::span<const Intervals> per_dim);

/// Errors: throws Error{layout_mismatch} that names `layout` if `shape` has no such dim; negative dims count from the
///         end.
void check_dim(int dim, const Extents& shape, const LayoutRule& layout);
/// `dim` counted from the front. Requires: check_dim() passed.
inline std::size_t resolve_dim(int dim, const Extents& shape) {
  return dim < 0 ? shape.size() - static_cast<std::size_t>(-dim) : static_cast<std::size_t>(dim);
}

}  // namespace shardwire
