// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace shardwire::cli {

/// Prints what the reader understands of a case file. Errors: throws CaseError.
void check_case(const std::string& path);

}  // namespace shardwire::cli
