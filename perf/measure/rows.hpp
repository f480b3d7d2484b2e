// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/measure/job.hpp"

namespace shardwire::perf {

/// What the rows of one run have in common, besides what the run found out.
struct RowHead {
  std::string target;              ///< name of the project's target that the row is a measurement of; may be empty
  nlohmann::ordered_json options;  ///< of the command line, that matter
};

/// One row for each way of each measurement. ../README.md says what its fields mean.
std::vector<nlohmann::ordered_json> rows_of(const Setup& setup, const Outcome& outcome, const RowHead& head);

/// The same of processes that were started several times, with the first restore of each start beside its later ones.
/// Requires: at least one start.
std::vector<nlohmann::ordered_json> first_rows_of(const Setup& setup, const std::vector<Outcome>& starts,
                                                  const RowHead& head);

/// Why ways could not be gone, and in which measurements.
std::vector<std::string> refusals_of(const Setup& setup, const Outcome& outcome);

/// Medians of one way of one measurement, for a fit: of the rank that took longest.
struct MoveSeconds {
  bool possible = false;
  double move = 0;  ///< in stage move
};
MoveSeconds move_seconds_of(const Setup& setup, const Outcome& outcome, std::size_t measurement, std::size_t way);

}  // namespace shardwire::perf
