// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "cli/run_supervisor.hpp"
#include "shardwire/bootstrap.hpp"

namespace shardwire::cli {

/// Runs all members on this host, a process each or the threads of one process over loopback; or takes part in a job whose
/// processes a launcher has started, of which one reports for all. `prepare` fills in both first; it is told which.
/// What goes wrong becomes an error of the job, so that whatever ends a job is in its report, and an interruption is said.
/// Errors: bad usage is in no report: throws CaseError, and UsageError, also when a launcher has started another number of
///         processes than the case has.
JobOutcome run_job(Case& job, const RunOptions& options, const std::function<void(bool launched)>& prepare);

/// True when torchrun, mpirun or srun has started this process.
bool started_by_launcher();

}  // namespace shardwire::cli
