// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "case/models.hpp"

namespace shardwire {

/// The model that a config.json of the transformers library describes. Layers for multi-token prediction are not part of it.
/// Errors: throws CaseError that begins with the file's name.
Model load_model_config(const std::string& path);

}  // namespace shardwire
