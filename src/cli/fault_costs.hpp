// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <vector>

#include "cli/fault.hpp"
#include "cli/run_result.hpp"

namespace shardwire::cli {

/// A fault, and its cost to all readers.
struct FaultCost {
  FaultOutcome outcome;
  std::optional<double>
      noticed_seconds{};  ///< from the strike until the first reader gave the source up; empty: none did
  std::uint64_t boxes_replanned = 0;
  ByteCount resent_bytes = 0;
};

/// A loss is of the last fault that struck its rank before. Pure.
std::vector<FaultCost> costs_of(std::span<const FaultOutcome> faults, std::span<const MemberResult> results);

/// As in reports.
nlohmann::json to_json(std::span<const FaultCost> costs);

}  // namespace shardwire::cli
