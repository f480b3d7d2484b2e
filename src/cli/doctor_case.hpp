// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cli/doctor_expect.hpp"
#include "shardwire/plan.hpp"

namespace shardwire::cli {

struct DoctorOptions {
  std::string transport;  ///< value of --transport; may be empty
  bool json = false;
  Replicas replicas = Replicas::spread;
  bool measure = false;                   ///< with a case: moves its state, and shows measured beside expected times
  std::optional<Expectation> expected{};  ///< with a case: the command fails if a path is not so
};

/// Starts the ranks of a case, or joins those that a launcher has started, lets them plan and connect, and prints each
/// rank's paths. Returns the exit code. Errors: throws CaseError, UsageError.
int examine_case(const std::string& path, const DoctorOptions& options);

}  // namespace shardwire::cli
