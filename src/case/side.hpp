// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/models.hpp"

namespace shardwire {

/// A state of a tensor.
struct CaseState {
  std::string name;
  DType dtype{};
};

/// The tensors of a case with their states, and the location of each in the file.
struct TensorList {
  std::vector<CaseTensor> tensors{};
  std::vector<std::vector<CaseState>> states{};  ///< first those of the case, then those of tensors that have their own
  bool of_model = false;
  int layers = 0;  ///< of a model

  [[nodiscard]] const std::vector<CaseState>& states_of(const CaseTensor& tensor) const {
    return states[tensor.states];
  }
  [[nodiscard]] std::string place(const CaseTensor& tensor) const;
};

/// Errors: throws CaseError.
CaseSide parse_side(const Node& node, const TensorList& list, bool source);

}  // namespace shardwire
