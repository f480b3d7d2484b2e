// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "cli/fault.hpp"

namespace shardwire::cli {

/// The words of a drill's command line; empty: not given.
struct DrillWords {
  std::string path;
  std::string seeds = "0:20";
  std::string transport;
  std::string verify = "generation";
  std::string kinds;
  std::string rate;
  std::string json;
  double timeout_seconds = 60;  // generous: the machine may be busy
  double notice_seconds = 0.5;
  bool disjoint = false;
};

/// The faults of one seed: one or two, each of one of these kinds, at different source ranks that hold something, at a
/// percentage of the payload or at the begin of a stage. Pure: a seed means the same faults on every machine.
/// Requires: at least one kind, and a source rank that is not lost.
std::vector<Fault> faults_of_seed(std::uint64_t seed, const Case& job, std::span<const FaultKind> kinds);

/// The command line that runs one seed of such a drill again, with all that decides how it ends.
std::string command_of_seed(const DrillWords& words, std::uint64_t seed);

}  // namespace shardwire::cli
