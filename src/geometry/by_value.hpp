// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "shardwire/tensor.hpp"

namespace shardwire {

/// Whether a tensor has one element: it then stands in manifests like any other, and its layout says who holds it and where,
/// but its element travels inside the publication, and it is no piece of a plan (layout maths M9).
inline bool travels_by_value(const TensorSpec& spec) {
  return std::all_of(spec.shape.begin(), spec.shape.end(), [](Extent extent) { return extent == 1; });
}

}  // namespace shardwire
