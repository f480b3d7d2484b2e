// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "geometry/strides.hpp"
#include "shardwire/plan.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// The one of `boxes` around `box`. Errors: throws Error{internal} if there is none.
const PlacedBox& box_around(const PlacedBoxes& boxes, const Box& box);

/// The box of rank `layout_rank` around `box`, in the memory of `handle`. Verifies the source's statement: every byte
/// of `box` has to lie inside the `mapped_bytes` mapped of its region.
/// Errors: throws Error{transport_failed} naming rank, tensor and handle for a handle that reaches outside, overflows
///         or does not go with the layout; Error{internal} when that rank does not hold `box`.
const PlacedBox& remote_box(const wire::TensorHandle& handle, ByteCount mapped_bytes, const TensorLayout& held,
                            Rank layout_rank, const Box& box, BoxCache& cache);

}  // namespace shardwire::restore
