// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace shardwire {

/// A file's name in messages: its path, or "standard input" for "-".
std::string shown_name(const std::string& path);

/// A whole file, or standard input for "-"; for a longer file, its beginning of more than `max_bytes` bytes.
/// Errors: throws CaseError that begins with the file's name.
std::string read_text(const std::string& path, std::size_t max_bytes);

}  // namespace shardwire
