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

struct RankTotals {
  Rank target{};
  std::size_t pieces = 0;
  ElementCount runs = 0;
  ByteCount needed = 0;
  ByteCount local = 0;
};

struct Flow {
  Rank source{};
  Rank target{};
  ByteCount bytes = 0;
};

/// Totals over the target ranks walked. needed == local + remote.
struct PlanTotals {
  ByteCount needed = 0;
  ByteCount local = 0;
  ByteCount remote = 0;
  ByteCount max_egress = 0;
  ByteCount max_ingress = 0;
  ElementCount runs = 0;
  std::vector<RankTotals> ranks;
  std::vector<Flow> largest;  ///< largest remote flows, largest first
};

/// Walks the plans of some target ranks. Works rank by rank, so that a job of millions of pieces needs little memory.
class PlanWalk {
 public:
  PlanWalk(JobLayout from, JobLayout to) : planner_(std::move(from), std::move(to)) {}

  /// Wanted regions that nobody holds, of all `targets`.
  std::vector<Gap> gaps(const std::vector<Rank>& targets);
  /// Calls `visit` (may be empty) for every piece. Requires: gaps(targets) is empty.
  PlanTotals totals(const std::vector<Rank>& targets, const std::function<void(const Transfer&)>& visit);

 private:
  Planner planner_;
};

}  // namespace shardwire::cli
