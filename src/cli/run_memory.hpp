// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "case/case.hpp"
#include "cli/run_options.hpp"

namespace shardwire::cli {

/// Refuses a job on this one host that memory does not suffice for: finding that half-way would end processes by signals.
/// Errors: throws Error{out_of_resources} that says what the job needs.
void require_memory(const Case& job, const RunOptions& options);

}  // namespace shardwire::cli
