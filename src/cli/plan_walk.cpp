// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_walk.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>

#include "geometry/placed_boxes.hpp"
#include "shardwire/error.hpp"

namespace shardwire::cli {
namespace {

constexpr std::size_t flows_kept = 10;

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

void keep_largest(std::vector<Flow>& flows, std::size_t count) {
  const auto larger = [](const Flow& a, const Flow& b) {
    return std::tuple(b.bytes, a.target, a.source) < std::tuple(a.bytes, b.target, b.source);
  };
  const auto end = flows.begin() + static_cast<std::ptrdiff_t>(std::min(count, flows.size()));
  std::partial_sort(flows.begin(), end, flows.end(), larger);
  flows.erase(end, flows.end());
}

}  // namespace

std::vector<Gap> PlanWalk::gaps(const std::vector<Rank>& targets) {
  std::vector<Gap> all;
  for (const Rank target : targets) {
    Plan plan = planner_.plan(target);
    std::move(plan.gaps.begin(), plan.gaps.end(), std::back_inserter(all));
  }
  return all;
}

PlanTotals PlanWalk::totals(const std::vector<Rank>& targets, const std::function<void(const Transfer&)>& visit) {
  PlanTotals totals;
  BoxCache held_boxes;
  BoxCache wanted_boxes;
  std::vector<ByteCount> egress(static_cast<std::size_t>(planner_.from().ranks));
  for (const Rank target : targets) {
    const Plan plan = planner_.plan(target);
    const Schedule schedule = planner_.schedule(plan);
    RankTotals of_rank;
    of_rank.target = target;
    of_rank.pieces = schedule.items.size();
    std::map<Rank, ByteCount> from_source;
    for (const ScheduledPiece& item : schedule.items) {
      const Piece& piece = plan.pieces[item.piece];
      const Box& box = schedule.box(item);
      const TensorLayout& wanted = plan.wanted->tensors[to_index(piece.tensor)];
      const TensorLayout& held = planner_.from().sections[item.section].manifest->tensors[to_index(item.held)];
      const ByteCount bytes = static_cast<ByteCount>(box.volume()) * item_size(wanted.spec.dtype);
      of_rank.needed += bytes;
      from_source[item.source] += bytes;
      of_rank.runs +=
          runs_of(box, held_boxes.holding(held, item.source, box), wanted_boxes.holding(wanted, target, box));
      if (visit) visit({wanted.spec.key, item.source, target, box, bytes});
    }
    for (const auto& [source, bytes] : from_source) {
      if (source == target) {
        of_rank.local = bytes;
        continue;
      }
      egress[static_cast<std::size_t>(to_int(source))] += bytes;
      totals.largest.push_back({source, target, bytes});
    }
    if (totals.largest.size() > 4096) keep_largest(totals.largest, flows_kept);
    totals.needed += of_rank.needed;
    totals.local += of_rank.local;
    totals.runs += of_rank.runs;
    totals.max_ingress = std::max(totals.max_ingress, of_rank.needed - of_rank.local);
    totals.ranks.push_back(of_rank);
  }
  totals.remote = totals.needed - totals.local;
  if (!egress.empty()) totals.max_egress = *std::max_element(egress.begin(), egress.end());
  keep_largest(totals.largest, flows_kept);
  return totals;
}

}  // namespace shardwire::cli
