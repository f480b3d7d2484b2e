// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

// Types of options, as --help shows them. Completion offers what they name.
namespace shardwire::cli {

inline constexpr const char* file_type = "FILE";
/// One of the words of a list: "host, cuda" is shown as "host|cuda".
std::string one_of(std::string_view words);
/// One or more of them, separated by commas.
std::string some_of(std::string_view words);

}  // namespace shardwire::cli
