// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "shardwire/types.hpp"

namespace shardwire {

/// Shorter job keys can be guessed, and are refused.
inline constexpr std::size_t min_key_bytes = 16;

/// The job key in a regular file of this user, or of root. `named_by`: what names the file, for messages.
/// Errors: throws Error{invalid_argument} if it cannot be read, is shorter than that, or is open to other users. A group
///         may read a file of root's: so secrets are mounted into containers.
Bytes read_key_file(const std::string& path, const std::string& named_by);

/// Writes a fresh key into a new file that only this user can read.
/// Errors: throws Error{invalid_argument} if the file exists or cannot be written.
void make_key_file(const std::string& path);

}  // namespace shardwire
