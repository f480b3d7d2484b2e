// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bugs.hpp"
#include "endings.hpp"
#include "schedule.hpp"

namespace shardwire::simulation {

/// A member is killed right after one of its events: so many of these lie between any two messages.
struct Crash {
  int member = 0;
  std::uint64_t after = 0;  ///< number of its events
  bool silent = false;      ///< its host loses its power
};

struct RunOptions {
  Bug bug = Bug::none;
  bool traced = true;  ///< else the trace is empty, and the run takes less time
  bool logs = false;   ///< messages of the sessions are in the trace
  /// A restore has to complete if each of its boxes keeps a holder.
  bool fails_over = false;
  std::optional<Crash> crash{};
};

/// The results of a run.
struct Findings {
  std::vector<std::string> failures;  ///< invariants that did not hold
  std::uint64_t restores = 0;         ///< that ended
  std::uint64_t avoidable = 0;        ///< failed ones whose boxes all kept a holder
  std::uint64_t events = 0;
  std::vector<std::uint64_t> events_of{};  ///< by member: of its last process
  std::uint64_t hash = 0;                  ///< of the trace
  std::string trace;
  std::vector<Ending> endings;  ///< of restores and exchanges
};

/// Runs whole sessions through the schedule, on this thread, and checks what must hold after every run.
/// Equal schedules give equal traces, byte for byte.
Findings run(const Schedule& schedule, const RunOptions& options = {});

}  // namespace shardwire::simulation
