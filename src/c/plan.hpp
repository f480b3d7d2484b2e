// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shardwire/c/plan.h"
#include "shardwire/plan.hpp"

namespace shardwire::c_api {

/// The object behind a shardwire_plan.
struct PlanRecord {
  PlanRecord(std::shared_ptr<Planner> made_by, Rank target);
  PlanRecord(const PlanRecord&) = delete;
  PlanRecord& operator=(const PlanRecord&) = delete;

  std::shared_ptr<Planner> planner;  // owners: its own handle and its plans, which only it can schedule
  Plan plan;
  std::vector<std::vector<std::int32_t>> holder_sets;
  std::vector<shardwire_gap> gaps;  // borrows from `plan`
};

}  // namespace shardwire::c_api
