// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_walk.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "geometry/placed_boxes.hpp"
#include "shardwire/error.hpp"

namespace shardwire::cli {
namespace {

// Remembers the boxes of ranks: all layers and states of a model share a few (rule, shape) pairs.
class BoxCache {
 public:
  const PlacedBox& holding(const TensorLayout& tensor, Rank rank, const Box& piece) {
    const PlacedBoxes& boxes = boxes_of(tensor, rank);
    if (boxes.all().size() == 1) return boxes.all().front();
    const PlacedBox* found = boxes.around(piece);
    if (found == nullptr) throw Error(ErrorCode::internal, "a piece lies in no box of " + to_string(tensor.spec.key));
    return *found;
  }

 private:
  const PlacedBoxes& boxes_of(const TensorLayout& tensor, Rank rank) {
    std::vector<Entry>& entries = entries_[{&tensor.layout.rule(), rank}];
    for (Entry& entry : entries) {
      if (entry.shape == tensor.spec.shape) return entry.boxes;
    }
    entries.push_back({tensor.spec.shape, PlacedBoxes(tensor.layout.boxes_of(tensor.spec.shape, rank))});
    return entries.back().boxes;
  }

  struct Entry {
    Extents shape;
    PlacedBoxes boxes;
  };
  struct Hash {
    std::size_t operator()(const std::pair<const LayoutRule*, Rank>& key) const {
      return std::hash<const void*>()(key.first) ^ (static_cast<std::size_t>(to_int(key.second)) * 0x9e3779b97f4a7c15U);
    }
  };
  std::unordered_map<std::pair<const LayoutRule*, Rank>, std::vector<Entry>, Hash> entries_;
};

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
  BoxCache held_boxes;
  BoxCache wanted_boxes;
  TargetTotals sums;
  std::map<Rank, ByteCount> from_source;
  walk(target, [&](const Transfer& transfer, const TensorLayout& held, const TensorLayout& wanted) {
    ++sums.pieces;
    sums.needed += transfer.bytes;
    from_source[transfer.source] += transfer.bytes;
    sums.runs += runs_of(transfer.box, held_boxes.holding(held, transfer.source, transfer.box),
                         wanted_boxes.holding(wanted, target, transfer.box));
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
