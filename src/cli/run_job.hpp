// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "cli/run_supervisor.hpp"
#include "shardwire/bootstrap.hpp"

namespace shardwire::cli {

/// Runs `body`; what it throws becomes an error of the job, so that whatever ends a job is in its report. Only bad usage has
/// none: passes on CaseError and UsageError.
void reported(JobOutcome& outcome, const std::function<void()>& body);

/// Runs all members on this host: a process each, or the threads of one process over loopback.
JobOutcome run_here(const Case& job, const RunOptions& options);

/// True when torchrun, mpirun or srun has started this process.
bool started_by_launcher();

/// Takes part in a job whose processes a launcher has started. One of them reports for all.
/// Errors: throws UsageError when the number of processes is not that of the case.
JobOutcome run_launched(const Case& job, const RunOptions& options, const Bootstrap& bootstrap);

}  // namespace shardwire::cli
