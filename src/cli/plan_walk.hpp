// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "shardwire/plan.hpp"

namespace shardwire::cli {

/// One piece with its source, as the plan command shows it. Borrows from the walk.
struct Transfer {
  const TensorKey& key;
  Rank source;
  Rank target;
  const Box& box;
  ByteCount bytes;
};

/// Walks the plans of a job. Works rank by rank, so that a job of millions of pieces needs little memory.
class PlanWalk {
 public:
  PlanWalk(JobLayout from, JobLayout to, Topology topology = {})
      : planner_(std::move(from), std::move(to), std::move(topology)) {}

  /// Wanted regions of one target rank that nobody holds.
  std::vector<Gap> gaps(Rank target) { return planner_.plan(target).gaps; }
  /// Calls `visit` for every scheduled piece of these target ranks. Requires: they have no gaps.
  void pieces(const std::vector<Rank>& targets, const std::function<void(const Transfer&)>& visit);
  /// Sums over one target rank; max_egress is 0. Requires: it has no gaps.
  JobTotals totals(Rank target);
  Planner& planner() { return planner_; }

 private:
  template <typename Visit>
  void walk(Rank target, Visit visit);

  Planner planner_;
};

/// All ranks of a side, ascending.
std::vector<Rank> ranks_of(const JobLayout& side);

}  // namespace shardwire::cli
