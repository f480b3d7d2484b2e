// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "perf/measure/read_loop.hpp"
#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// Whether this is a loop of reads.
bool is_read_loop(Against against);
/// May open devices. Requires: is_read_loop(against). Errors: throws Error{unsupported} if this build has none, or if
/// the library finds no usable device, and the library's other errors.
std::unique_ptr<ReadLoop> open_read_loop(Against against, bool tcp);
/// Version of the loaded library. Errors: as open_read_loop().
std::string read_loop_version(Against against);

}  // namespace shardwire::perf
