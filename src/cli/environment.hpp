// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace shardwire::cli {

/// Value of a variable that is set and not empty.
std::optional<std::string> environment(const char* name);

/// Warns on standard error about unknown SHARDWIRE_* variables, most of which are misspelt.
void report_unknown_environment();

}  // namespace shardwire::cli
