// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/models.hpp"

namespace shardwire {

/// The tensors of a case before states, and the location of each in the file.
struct TensorList {
  std::vector<CaseTensor> tensors;
  bool of_model = false;
  int layers = 0;  ///< of a model
  [[nodiscard]] std::string place(std::size_t index) const;
};

/// Data common to both sides.
struct Shared {
  const TensorList& list;
  const std::vector<std::string>& states;
  const std::vector<DType>& dtypes;  ///< of the states
};

/// Errors: throws CaseError.
CaseSide parse_side(const Node& node, const Shared& shared, bool source);

}  // namespace shardwire
