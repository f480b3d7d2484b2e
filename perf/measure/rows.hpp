// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/measure/job.hpp"

namespace shardwire::perf {

/// Data common to the rows of one run, apart from its results.
struct RowHead {
  std::string target;              ///< name of the project's performance target that the row measures; may be empty
  nlohmann::ordered_json options;  ///< relevant options of the command line
};

/// One row for each method of each measurement. ../README.md describes its fields.
std::vector<nlohmann::ordered_json> rows_of(const Setup& setup, const Outcome& outcome, const RowHead& head);

/// The same for processes that were started several times, with the first restore of each start in addition to its
/// later ones.
/// Requires: at least one start.
std::vector<nlohmann::ordered_json> first_rows_of(const Setup& setup, const std::vector<Outcome>& starts,
                                                  const RowHead& head);

/// Why methods could not be used, and in which measurements.
std::vector<std::string> refusals_of(const Setup& setup, const Outcome& outcome);

/// Medians of one method of one measurement, for a fit: of the slowest rank.
struct MoveSeconds {
  bool possible = false;
  double move = 0;  ///< in stage move
};
MoveSeconds move_seconds_of(const Setup& setup, const Outcome& outcome, std::size_t measurement, std::size_t method);

}  // namespace shardwire::perf
