// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_walk.hpp"

#include <map>

#include "geometry/strides.hpp"
#include "shardwire/error.hpp"

namespace shardwire::cli {
namespace {

const PlacedBox& holding(BoxCache& cache, const TensorLayout& tensor, Rank rank, const Box& piece) {
  const PlacedBox* found = cache.of(tensor.layout, tensor.spec.shape, rank, {}).around(piece);
  if (found == nullptr) throw Error(ErrorCode::internal, "a piece lies in no box of " + to_string(tensor.spec.key));
  return *found;
}

}  // namespace

template <typename Visit>
void PlanWalk::walk(Rank target, Visit visit) {
  const Plan plan = planner_.plan(target);
  const Schedule schedule = planner_.schedule(plan);
  for (const ScheduledPiece& item : schedule.items) {
    const TensorLayout& wanted = plan.wanted->tensors[to_index(plan.pieces[item.piece].tensor)];
    const TensorLayout& held = planner_.from().sections[item.section].manifest->tensors[to_index(item.held)];
    const Box& box = schedule.box(item);
    const ByteCount bytes = static_cast<ByteCount>(box.volume()) * item_size(wanted.spec.dtype);
    visit(Transfer{wanted.spec.key, item.source, target, box, bytes}, held, wanted);
  }
}

void PlanWalk::pieces(const std::vector<Rank>& targets, const std::function<void(const Transfer&)>& visit) {
  for (const Rank target : targets) {
    walk(target, [&](const Transfer& transfer, const TensorLayout&, const TensorLayout&) { visit(transfer); });
  }
}

JobTotals PlanWalk::totals(Rank target) {
  BoxCache boxes;
  TargetTotals sums;
  std::map<Rank, ByteCount> from_source;
  walk(target, [&](const Transfer& transfer, const TensorLayout& held, const TensorLayout& wanted) {
    ++sums.pieces;
    sums.needed += transfer.bytes;
    from_source[transfer.source] += transfer.bytes;
    sums.runs += runs_of(transfer.box, holding(boxes, held, transfer.source, transfer.box),
                         holding(boxes, wanted, target, transfer.box));
  });
  JobTotals totals;
  for (const auto& [source, bytes] : from_source) {
    totals.flows.push_back({source, target, bytes});
    if (source == target) sums.local = bytes;
  }
  totals.needed = sums.needed;
  totals.local = sums.local;
  totals.remote = totals.max_ingress = sums.needed - sums.local;
  totals.pieces = sums.pieces;
  totals.runs = sums.runs;
  totals.targets.push_back(sums);
  return totals;
}

std::vector<Rank> ranks_of(const JobLayout& side) {
  std::vector<Rank> ranks;
  for (std::int32_t rank = 0; rank < side.ranks; ++rank) ranks.push_back(Rank{rank});
  return ranks;
}

}  // namespace shardwire::cli
