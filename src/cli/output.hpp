// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace shardwire::cli {

/// Writes to standard output. Errors: throws std::runtime_error when it takes not everything, so that whoever produces
/// much stops soon after the reader has gone.
void write_output(std::string_view text);
/// Errors: throws std::runtime_error when anything that was written to standard output did not get there.
void finish_output();

/// To be called first: keeps files that are opened later from getting the number of a standard stream that was closed, and
/// with it what is meant for that. Using such a stream stays an error. A reader that goes away is one too, not a signal.
void keep_standard_streams();

}  // namespace shardwire::cli
