// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "plan/fabric_model.hpp"

namespace shardwire::cli {

/// What a job would take on a fabric.
struct FabricForecast {
  std::string name;                    ///< of the fabric
  std::vector<std::string> sources{};  ///< of its figures
  int ranks_per_host = 1;
  bool hosts_given = false;  ///< by the case, or else the fabric
  bool relabelled = false;
  RestorePrediction prediction;
};

/// `processes`: of each target rank; empty: that of its own number. Where neither the case nor the fabric says how many
/// ranks share a host, each has one of its own.
FabricForecast forecast(const Case& job, const ClusterModel& fabric, std::span<const Flow> flows,
                        std::span<const std::int32_t> processes);

/// For people: the busiest links and host pairs only.
void print_forecast(const FabricForecast& forecast);
/// All links and host pairs, as a JSON object.
std::string forecast_json(const FabricForecast& forecast);

}  // namespace shardwire::cli
