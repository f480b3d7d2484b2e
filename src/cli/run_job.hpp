// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "cli/run_supervisor.hpp"
#include "shardwire/bootstrap.hpp"

namespace shardwire::cli {

/// Runs all members on this host, as a process each or as threads of one process over loopback; or takes part in a job
/// whose processes a launcher has started, one of which reports for all. `prepare` first completes both arguments; it
/// receives which of the two applies. Every failure becomes an error of the job and part of its report; an interruption
/// is reported too.
/// Errors: bad usage is in no report: throws CaseError, and UsageError, also if a launcher has started another number
///         of processes than the case has.
JobOutcome run_job(Case& job, const RunOptions& options, const std::function<void(bool launched)>& prepare);

/// True if torchrun, mpirun or srun has started this process.
bool started_by_launcher();

}  // namespace shardwire::cli
