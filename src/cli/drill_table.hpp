// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/drill_verdict.hpp"
#include "cli/fault_costs.hpp"

namespace shardwire::cli {

/// The result of one seed.
struct SeedResult {
  std::uint64_t seed = 0;
  Verdict verdict;
  std::vector<FaultCost> costs;
  std::string methods{};                 ///< that carried bytes between processes, joined by +
  std::map<Rank, ByteCount> owed_bytes;  ///< that each struck source was to send, by the plan
};

/// Counts seeds, and costs by fault kind and method.
class DrillTable {
 public:
  void add(const SeedResult& result);
  /// The summary, on standard output.
  void print() const;
  [[nodiscard]] std::uint64_t bugs() const { return counts_.bugs; }

 private:
  struct Counts {
    std::uint64_t seeds = 0;
    std::uint64_t completed = 0;
    std::uint64_t refused = 0;
    std::uint64_t bugs = 0;

    void add(Verdict::Kind kind);
  };
  struct Row {
    Counts counts;
    std::vector<double> noticed_seconds;
    ByteCount again_bytes = 0;
    ByteCount owed_bytes = 0;
  };

  Counts counts_;
  Counts with_holders_;
  std::map<std::pair<std::string, std::string>, Row> rows_;  // by kind and method; of faults that struck
  std::uint64_t not_struck_ = 0;
};

}  // namespace shardwire::cli
