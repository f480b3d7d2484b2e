// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "case/models.hpp"

namespace shardwire {

/// The tensors that an index of safetensors files lists, with shapes from the headers of the files, which lie beside the index.
struct Checkpoint {
  std::vector<CaseTensor> tensors;  ///< in the order of their layers
  std::size_t left_out = 0;         ///< tensors of integers, of which no optimizer keeps states
};

/// Errors: throws CaseError that begins with the name of the index, then that of the file at fault.
Checkpoint load_checkpoint(const std::string& index);

}  // namespace shardwire
