// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "perf/measure/rows.hpp"
#include "perf/measure/setup.hpp"

namespace shardwire::cli {

/// What `shardwire perf` was asked for, as it was typed.
struct PerfWords {
  std::string path;  ///< of the case; empty: a sweep
  std::string transport;
  std::string memory = "host";
  std::string verify = "none";
  std::string rate;
  std::string staging;
  std::string calibration;
  std::string bytes;
  std::string output;
  std::string plot;
  std::string target;
  std::string calibrate;  ///< the file to write
  std::vector<std::string> runs;
  std::vector<std::string> ways;
  std::vector<std::string> against;
  std::optional<int> layers;
  std::optional<int> ranks;
  int repeats = 5;
  double deadline_seconds = 1800;
  std::optional<int> starts;  ///< of --fresh
  bool tcp = false;
  bool ordinary = false;
  bool disjoint = false;
  bool pairs = false;
  bool calibrates = false;  ///< the option was given
};

/// Ranks that a launcher has started; empty: none has.
using LaunchedRanks = std::optional<int>;

/// One case, or the sweep. Errors: throws UsageError and CaseError.
perf::Setup setup_of(const PerfWords& words, LaunchedRanks launched);
/// What a row says of the command line.
nlohmann::ordered_json options_of(const PerfWords& words, const perf::Setup& setup);

/// Path of the program that mpirun starts. Errors: throws UsageError when this build has none, or there is no mpirun.
std::string mpi_program();

/// Runs all members here, and cleans up behind those that had to be ended.
perf::Outcome run_setup(const perf::Setup& setup);

/// `shardwire perf --calibrate`. Errors: throws UsageError.
int calibrate(const PerfWords& words);

/// For people, on standard error.
void print_rows(const std::vector<nlohmann::ordered_json>& rows);
/// An SVG of speed over run length. Requires: rows of a sweep.
std::string draw_rows(const std::vector<nlohmann::ordered_json>& rows);

}  // namespace shardwire::cli
