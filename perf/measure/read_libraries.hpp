// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "perf/measure/read_loop.hpp"
#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// Whether this is a loop of reads.
bool is_read_loop(Against against);
/// It may open devices. These require is_read_loop(against). Errors: throws Error{unsupported} where this build has none, or the
/// library finds nothing to use here, and what else the library says.
std::unique_ptr<ReadLoop> open_read_loop(Against against, bool tcp);
/// Of the library as loaded. Errors: as open_read_loop().
std::string read_loop_version(Against against);

}  // namespace shardwire::perf
