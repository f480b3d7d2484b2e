// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace shardwire::cli {

/// Writes to standard output. Errors: throws std::runtime_error if not everything was written, so that a producer of
/// much output stops soon after the reader has gone.
void write_output(std::string_view text);
/// Errors: throws std::runtime_error if any output was lost.
void finish_output();

/// Call it first: it prevents files opened later from getting the number of a closed standard stream, and thereby that
/// stream's output. Using such a stream stays an error. A reader that goes away is an error too, not a signal.
void keep_standard_streams();

}  // namespace shardwire::cli
