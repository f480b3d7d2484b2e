// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "plan/fabric_model.hpp"

namespace shardwire::cli {

/// The forecast of a job on a fabric.
struct FabricForecast {
  std::string name;                    ///< of the fabric
  std::vector<std::string> sources{};  ///< of its figures
  int ranks_per_host = 1;
  bool hosts_given = false;  ///< by the case, or else the fabric
  bool relabelled = false;
  RestorePrediction prediction;
};

/// `processes`: of each target rank; empty: target rank i is in process i. If neither the case nor the fabric gives the
/// ranks per host, each rank has its own host.
FabricForecast forecast(const Case& job, const ClusterModel& fabric, std::span<const Flow> flows,
                        std::span<const std::int32_t> processes);

/// For people: only the busiest links and host pairs.
void print_forecast(const FabricForecast& forecast);
/// All links and host pairs, as a JSON object.
std::string forecast_json(const FabricForecast& forecast);

}  // namespace shardwire::cli
