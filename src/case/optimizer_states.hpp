// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "case/models.hpp"
#include "case/parallel.hpp"

namespace shardwire {

/// A state that an optimizer keeps of a tensor.
struct OptimizerState {
  std::string_view name;
  std::string_view dtype;
  Extents shape;
  Split split;
};

/// The states that an optimizer keeps of tensors.
struct Optimizer {
  std::string_view name;
  std::vector<std::string_view> common;  ///< of tensors for which `own` returns none; f32, and of the tensor's shape
  /// Errors: throws CaseError, by name, for a tensor whose states would not be split as it is split on `sides`.
  std::vector<OptimizerState> (*own)(const CaseTensor& tensor, std::span<const Degrees> sides);
};

/// All of them, the default first.
std::span<const Optimizer> optimizers();

}  // namespace shardwire
