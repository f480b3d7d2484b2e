// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "case/models.hpp"

namespace shardwire {

/// The same as tensors_of() for the models that have norms with biases, and no gate in the feed-forward part: all families but
/// Family::llama.
std::vector<CaseTensor> tensors_of_gpt(const Model& model, int layers, bool embeddings);

}  // namespace shardwire
