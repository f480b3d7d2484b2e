// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "perf/measure/facts.hpp"
#include "perf/measure/mpi_order.hpp"
#include "perf/measure/processes.hpp"
#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// The results of a run.
struct Outcome {
  std::vector<MemberFacts> members;
  std::optional<MpiFacts> mpi;
  bool one_clock = true;  ///< all spans are of one host
};

/// With the bytes of turns that are done: see bytes_of_turns(). run_here() calls it about twice a second, run_launched() on
/// member 0 at the start and after each turn.
using OnProgress = std::function<void(ByteCount done_bytes)>;

/// Runs all members on this host: a process each, or threads of one process over loopback. `mpi_program`: see
/// mpi_program.cpp; used if the setup requests it. `watch`: see run_children.
/// Requires: this process has one thread and has not called UCX. Errors: throws if any member failed.
Outcome run_here(const Setup& setup, const Bootstrap& bootstrap, const std::string& mpi_program, const Watch& watch,
                 const OnProgress& progress);

/// Takes part as one member of a job that a launcher has started. Empty except on member 0. Errors: throws.
std::optional<Outcome> run_launched(const Setup& setup, const Bootstrap& bootstrap, const OnProgress& progress);

}  // namespace shardwire::perf
