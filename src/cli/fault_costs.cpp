// SPDX-License-Identifier: Apache-2.0
#include "cli/fault_costs.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shardwire::cli {
namespace {

FaultCost* cause_of(const Loss& loss, std::vector<FaultCost>& costs) {
  FaultCost* cause = nullptr;
  for (FaultCost& one : costs) {
    const auto& struck = one.outcome.struck_ns;
    if (!struck || one.outcome.fault.rank != loss.source.rank || *struck > loss.at_ns) continue;
    if (cause == nullptr || *struck > *cause->outcome.struck_ns) cause = &one;
  }
  return cause;
}

}  // namespace

std::vector<FaultCost> costs_of(std::span<const FaultOutcome> faults, std::span<const MemberResult> results) {
  std::vector<FaultCost> costs;
  for (const FaultOutcome& fault : faults) costs.push_back({fault});
  for (const MemberResult& result : results) {
    for (const Loss& loss : result.losses) {
      FaultCost* const cause = cause_of(loss, costs);
      if (cause == nullptr) continue;
      const double seconds = static_cast<double>(loss.at_ns - *cause->outcome.struck_ns) / 1e9;
      cause->noticed_seconds = std::min(cause->noticed_seconds.value_or(seconds), seconds);
      cause->boxes_replanned += loss.source.boxes_replanned;
      cause->resent_bytes += loss.source.resent_bytes;
    }
  }
  return costs;
}

nlohmann::json to_json(std::span<const FaultCost> costs) {
  nlohmann::json all = nlohmann::json::array();
  for (const FaultCost& one : costs) {
    const Fault& fault = one.outcome.fault;
    all.push_back({{"rank", to_int(fault.rank)},
                   {"kind", to_string(fault.kind)},
                   {"at_percent", fault.stage.empty() ? nlohmann::json(fault.percent) : nlohmann::json()},
                   {"at_stage", fault.stage.empty() ? nlohmann::json() : nlohmann::json(fault.stage)},
                   {"struck", one.outcome.struck_ns.has_value()},
                   {"noticed_s", one.noticed_seconds ? nlohmann::json(*one.noticed_seconds) : nlohmann::json()},
                   {"boxes_replanned", one.boxes_replanned},
                   {"bytes_moved_again", one.resent_bytes}});
  }
  return all;
}

}  // namespace shardwire::cli
