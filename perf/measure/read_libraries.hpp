// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "perf/measure/read_loop.hpp"
#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// Whether this is a loop of reads.
bool is_read_loop(Against against);
/// Why there is none here; empty when there is one. These require is_read_loop(against).
std::string why_no_read_loop(Against against);
/// Errors: throws Error{unsupported} with why_no_read_loop(), or what the library says.
std::unique_ptr<ReadLoop> open_read_loop(Against against, bool tcp);
/// Of the library as loaded. Errors: as open_read_loop().
std::string read_loop_version(Against against);

}  // namespace shardwire::perf
