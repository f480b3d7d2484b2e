// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "case/case.hpp"
#include "cli/fault_costs.hpp"
#include "cli/run_options.hpp"
#include "cli/run_supervisor.hpp"

namespace shardwire::cli {

/// A job's outcome, from those of its members. Bytes and seconds are of the last restore of each target rank.
class JobReport {
 public:
  JobReport(const Case& job, const RunOptions& options, JobOutcome outcome);

  [[nodiscard]] bool verified() const { return verified_; }
  /// For people: the outcome of the job, after its errors.
  void print() const;
  /// The first few, on standard error.
  void print_errors() const;
  /// As JSON. Errors may have many gaps, so they are written one by one.
  void write(std::ostream& out) const;

 private:
  [[nodiscard]] nlohmann::json json() const;  // without errors
  [[nodiscard]] ByteCount sum(ByteCount RestoreReport::*field) const;
  [[nodiscard]] std::vector<double> slowest_walls() const;
  [[nodiscard]] const MemberResult* slowest() const;
  /// By method; seconds of the rank where it took longest.
  [[nodiscard]] MethodTable methods() const;
  void print_paths() const;
  void print_faults() const;

  const Case& job_;
  const RunOptions& options_;
  std::vector<MemberResult> targets_;  // ascending by rank
  std::vector<RunError> errors_;
  std::vector<FaultCost> faults_;
  ByteCount staging_peak_ = 0;
  ByteCount registered_bytes_ = 0;
  double registration_seconds_ = 0;
  std::string transport_;
  bool verified_ = false;
};

/// Refuses, before anything runs, a path to which no report could be written. Errors: throws UsageError.
void require_writable(std::string_view option, const std::string& path);
/// Errors: throws std::runtime_error.
void write_report(const std::string& path, const JobReport& report);

}  // namespace shardwire::cli
