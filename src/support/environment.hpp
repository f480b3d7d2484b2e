// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shardwire/types.hpp"

// The only list of SHARDWIRE_* variables, for the library and the command.
namespace shardwire::support {

/// Their names.
std::span<const std::string_view> known_variables();

/// Value of a variable that is set and not empty.
std::optional<std::string> variable(const char* name);

/// Whether a variable is `1`. Errors: throws Error{invalid_argument} for other values than 0, 1 and nothing.
bool is_set(const char* name);

/// A warning about unknown SHARDWIRE_* variables, most of which are misspelt. Empty if there are none, and from the
/// second call in a process on.
std::string unknown_variables_warning();

/// "4096", "64K", "256M", "2G" (x 1024), in bytes. Empty for anything else, and for values that do not fit 63 bits.
std::optional<ByteCount> parse_size(std::string_view text);

}  // namespace shardwire::support
