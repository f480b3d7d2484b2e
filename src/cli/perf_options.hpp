// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "perf/measure/rows.hpp"
#include "perf/measure/setup.hpp"

namespace shardwire::cli {

/// Words for --method, beside local without a CASE.
std::string known_methods();
/// Words for --against, beside none.
inline constexpr std::string_view known_references = "memcpy, ucx, mpi, unverified, contiguous, ucp_get, fi_read, nccl";

/// The command line of `shardwire perf`, as typed.
struct PerfWords {
  std::string path;  ///< of the case; empty: a sweep
  std::string transport;
  std::string memory = "host";
  std::string verify = "generation";
  std::string replicas = "spread";
  std::string rate;
  std::string staging;
  std::string calibration;
  std::string bytes;
  std::string output;
  std::string target;
  std::string calibrate;  ///< output file
  std::vector<std::string> runs;
  std::vector<std::string> methods;
  std::vector<std::string> against;
  std::optional<int> layers;
  std::optional<int> ranks;
  int repeats = 5;
  double timeout_seconds = 1800;
  std::optional<int> starts;  ///< value of --fresh
  bool tcp = false;
  bool ordinary = false;
  bool disjoint = false;
  bool pairs = false;
  bool json = false;
  bool calibrates = false;  ///< the option was given
};

/// Ranks that a launcher has started; empty: no launcher.
using LaunchedRanks = std::optional<int>;

/// One case, or the sweep. Errors: throws UsageError and CaseError.
perf::Setup setup_of(const PerfWords& words, LaunchedRanks launched);
/// The command line as reported in a row.
nlohmann::ordered_json options_of(const PerfWords& words, const perf::Setup& setup);

/// Path of the program that mpirun starts. Errors: throws UsageError if this build has none, or if there is no mpirun.
std::string mpi_program();

/// Runs all members on this host, and cleans up after those that had to be killed.
perf::Outcome run_setup(const perf::Setup& setup);

/// `shardwire perf --calibrate`. Errors: throws UsageError.
int calibrate(const PerfWords& words);

/// For people, on standard error.
void print_rows(const std::vector<nlohmann::ordered_json>& rows);

}  // namespace shardwire::cli
