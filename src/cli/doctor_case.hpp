// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace shardwire::cli {

struct DoctorOptions {
  std::string transport;  ///< as --transport says; may be empty
  bool json = false;
  bool measure = false;  ///< with a case: its state is moved, and what takes far longer than expected flagged
};

/// Starts the ranks of a case, or joins those that a launcher has started, has them plan and connect, and prints how every
/// rank's bytes would come. Returns the exit code. Errors: throws CaseError, UsageError.
int examine_case(const std::string& path, const DoctorOptions& options);

}  // namespace shardwire::cli
