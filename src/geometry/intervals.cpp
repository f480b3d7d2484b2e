// SPDX-License-Identifier: Apache-2.0
#include "geometry/intervals.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {

Interval chunk_of(Extent extent, Extent parts, Extent index) {
  const Extent step = support::ceil_div(extent, parts);
  // Compare before multiplying: step * index may exceed 64 bits for an empty tail chunk.
  if (step == 0 || index >= support::ceil_div(extent, step)) return {extent, extent};
  const Extent lower = step * index;
  return {lower, lower + std::min(step, extent - lower)};
}

Extent total_of(const Intervals& held) {
  Extent total = 0;
  for (const Interval& interval : held) total += interval.size();
  return total;
}

void append_slice(const Intervals& held, Interval local, Intervals& out) {
  Extent passed = 0;
  for (const Interval& interval : held) {
    const Extent lower = std::max(local.lower - passed, Extent{0});
    const Extent upper = std::min(local.upper - passed, interval.size());
    if (upper <= 0) return;
    passed += interval.size();
    if (lower >= upper) continue;
    const Interval part{interval.lower + lower, interval.lower + upper};
    if (!out.empty() && out.back().upper == part.lower) {
      out.back().upper = part.upper;
    } else {
      out.push_back(part);
    }
  }
}

std::vector<PlacedBox> product_of(std::span<const Intervals> per_dim) {
  const std::size_t dims = per_dim.size();
  Extents local_shape = Extents::filled(dims, 0);
  std::size_t count = 1;
  for (std::size_t dim = 0; dim < dims; ++dim) {
    local_shape[dim] = total_of(per_dim[dim]);
    count = support::multiply(count, per_dim[dim].size(), "the number of boxes");
  }
  if (count == 0) return {};

  std::vector<PlacedBox> boxes;
  boxes.reserve(count);
  const Extents strides = row_major_strides(local_shape);
  std::array<std::size_t, max_dims> at{};    // interval index of each dim
  Extents local = Extents::filled(dims, 0);  // where that interval starts in the local array
  while (true) {
    PlacedBox& placed = boxes.emplace_back();
    placed.box = {Extents::filled(dims, 0), Extents::filled(dims, 0)};
    placed.local_strides = strides;
    for (std::size_t dim = 0; dim < dims; ++dim) {
      const Interval& interval = per_dim[dim][at[dim]];
      placed.box.offset[dim] = interval.lower;
      placed.box.size[dim] = interval.size();
      placed.local_offset += local[dim] * strides[dim];
    }
    std::size_t dim = dims;  // increment like an odometer, last dim fastest
    while (dim-- > 0) {
      local[dim] += per_dim[dim][at[dim]].size();
      if (++at[dim] < per_dim[dim].size()) break;
      at[dim] = 0;
      local[dim] = 0;
    }
    if (dim > dims) return boxes;  // wrapped below zero: every dim is back at its start
  }
}

void check_dim(int dim, const Extents& shape, const LayoutRule& layout) {
  const int dims = static_cast<int>(shape.size());
  if (dim >= -dims && dim < dims) return;
  throw Error(ErrorCode::layout_mismatch, fmt::format("{} names dim {}, but shape {} has {} dims", layout.to_string(),
                                                      dim, to_string(shape), dims));
}

}  // namespace shardwire
