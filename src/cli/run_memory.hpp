// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "case/case.hpp"
#include "cli/run_options.hpp"

namespace shardwire::cli {

/// Says what a job on this one host needs, and refuses when memory or /dev/shm is short: finding that half-way would end
/// processes by signals. Errors: throws Error{out_of_resources}.
void require_memory(const Case& job, const RunOptions& options, bool shared);

}  // namespace shardwire::cli
