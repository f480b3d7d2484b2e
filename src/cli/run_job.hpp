// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cli/run_supervisor.hpp"

namespace shardwire::cli {

/// Runs all members on this host: a process each, or the threads of one process over loopback.
JobOutcome run_here(const Case& job, const RunOptions& options);

/// True when torchrun, mpirun or srun has started this process.
bool started_by_launcher();

/// Takes part in a job whose processes a launcher has started. Empty when the results could not be gathered.
/// Errors: throws UsageError when the number of processes is not that of the case.
std::optional<JobOutcome> run_launched(const Case& job, const RunOptions& options);

}  // namespace shardwire::cli
