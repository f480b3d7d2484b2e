// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "case/case.hpp"
#include "cli/run_options.hpp"

namespace shardwire::cli {

/// Refuses a job on this single host for which memory does not suffice; otherwise the kernel would kill processes
/// half-way.
/// Errors: throws Error{out_of_resources} that states what the job needs.
void require_memory(const Case& job, const RunOptions& options);

}  // namespace shardwire::cli
