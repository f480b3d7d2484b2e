// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "plan/fabric_model.hpp"

namespace shardwire {

/// Reads a fabric from JSON text; README.md describes the format. Errors: throws CaseError.
ClusterModel parse_fabric(const std::string& text);

/// Reads a file, or standard input for "-". Errors: throws CaseError that begins with the file's name.
ClusterModel load_fabric(const std::string& path);

}  // namespace shardwire
