// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "cli/fault_agent.hpp"
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
  std::vector<FaultOutcome> faults;   ///< of all that were asked for
};

/// One process to start, and the members that it represents.
struct ProcessPlan {
  std::vector<int> members;
  std::function<void(const MemberEnds& ends)> body;  ///< runs in the child, and reports to the command
};

/// Starts the processes as direct children (without exec, so they share the parsed case), receives their reports, and
/// kills those that hang, or all of them when this process is told to stop. Strikes those that the faults name: source
/// rank i is member i. `remote_bytes`: payload that crosses between processes in all restores, for the faults.
/// Requires: this process has one thread; with faults, a process per member.
JobOutcome supervise(const std::vector<ProcessPlan>& plans, const RunOptions& options, JobProgress& progress,
                     ByteCount remote_bytes = 0);

}  // namespace shardwire::cli
