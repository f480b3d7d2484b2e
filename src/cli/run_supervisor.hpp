// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "cli/run_options.hpp"
#include "cli/run_progress.hpp"
#include "cli/run_result.hpp"

namespace shardwire::cli {

/// The outcome of a job on this host.
struct JobOutcome {
  bool interrupted = false;
  bool reports = true;                ///< false in all processes but one of a launched job
  std::vector<MemberResult> results;  ///< of members that could report
  std::vector<RunError> errors;       ///< of processes that could not
};

/// One process to start, and the members that it represents.
struct ProcessPlan {
  std::vector<int> members;
  std::function<void(int descriptor)> body;  ///< runs in the child; reports on the descriptor
};

/// Starts the processes as direct children (without exec, so they share the parsed case), receives their reports, and
/// kills those that hang, or all of them when this process is told to stop.
/// Requires: this process has one thread.
JobOutcome supervise(const std::vector<ProcessPlan>& plans, const RunOptions& options, JobProgress& progress);

}  // namespace shardwire::cli
