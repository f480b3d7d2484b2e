// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "shardwire/tensor.hpp"

namespace shardwire {

/// Whether a tensor has one element. Manifests and layouts treat it like any other tensor, but its element travels
/// inside the publication and is not a piece of a plan.
inline bool travels_by_value(const TensorSpec& spec) {
  return std::all_of(spec.shape.begin(), spec.shape.end(), [](Extent extent) { return extent == 1; });
}

}  // namespace shardwire
