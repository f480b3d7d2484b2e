// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "plan/planner_state.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {
namespace {

constexpr const char* overflowing = "the sum over all target ranks";

ByteCount bytes_of(const Box& box, ByteCount item_bytes) {
  return support::multiply(static_cast<ByteCount>(box.volume()), item_bytes, overflowing);
}

// Bytes by source, of one target at a time.
class SourceSums {
 public:
  explicit SourceSums(int ranks) : bytes_(static_cast<std::size_t>(std::max(ranks, 0))) {}

  void add(Rank source, ByteCount bytes) {
    ByteCount& sum = bytes_[static_cast<std::size_t>(to_int(source))];
    if (sum == 0) touched_.push_back(source);
    sum = support::add(sum, bytes, overflowing);
  }
  // Appends the sums by source and forgets them.
  void flush(Rank target, std::vector<Flow>& out) {
    std::sort(touched_.begin(), touched_.end());
    for (const Rank source : touched_) {
      out.push_back({source, target, std::exchange(bytes_[static_cast<std::size_t>(to_int(source))], 0)});
    }
    touched_.clear();
  }

 private:
  std::vector<ByteCount> bytes_;  // by source rank
  std::vector<Rank> touched_;
};

void finish(JobTotals& totals, const std::vector<ByteCount>& egress) {
  for (const TargetTotals& target : totals.targets) {
    totals.needed = support::add(totals.needed, target.needed, overflowing);
    totals.local += target.local;
    totals.pieces += target.pieces;
    totals.runs = support::add(totals.runs, target.runs, overflowing);
    totals.max_ingress = std::max(totals.max_ingress, target.needed - target.local);
  }
  totals.remote = totals.needed - totals.local;
  if (!egress.empty()) totals.max_egress = *std::max_element(egress.begin(), egress.end());
}

}  // namespace

JobTotals Planner::totals(std::span<const Rank> lost_ranks) {
  State& state = *state_;
  const std::vector<Rank> lost = sorted(lost_ranks);
  JobTotals totals;
  totals.targets.resize(static_cast<std::size_t>(state.to.ranks));
  std::vector<ByteCount> egress(static_cast<std::size_t>(state.from.ranks));
  SourceSums sums(state.from.ranks);
  Shares shares;
  std::vector<Part> parts;
  bool gaps = false;
  for (std::int32_t r = 0; r < state.to.ranks; ++r) {
    const Rank target{r};
    const std::int32_t section = state.to_section_of(target);
    if (section < 0) continue;
    state.classes_of(static_cast<std::uint32_t>(section));
    TargetTotals& own = totals.targets[static_cast<std::size_t>(r)];
    for (const std::uint32_t id : state.distinct_classes_of(static_cast<std::uint32_t>(section))) {
      state.share_out_locally(id, target, lost, shares);
      if (shares.wanted.empty()) continue;
      const State::Class& of_tensor = state.classes[id];
      parts.clear();
      SourceChoice choice = state.choice_for(id, target, lost);
      for (std::uint32_t i = 0; i < shares.shares.size(); ++i) {
        const std::size_t before = parts.size();
        choice.choose(shares, i, parts);
        gaps = gaps || parts.size() == before;
      }
      gaps = gaps || !shares.gaps.empty();
      for (const Part& part : parts) {
        const ByteCount bytes = bytes_of(part.box, of_tensor.item_bytes);
        own.needed = support::add(own.needed, bytes, overflowing);
        sums.add(part.source->rank, bytes);
        own.runs += runs_of(part.box, part.source->placed, shares.wanted[shares.shares[part.share].wanted]) *
                    static_cast<ElementCount>(of_tensor.tensors);
      }
      own.pieces += parts.size() * of_tensor.tensors;
    }
    const std::size_t first = totals.flows.size();
    sums.flush(target, totals.flows);
    const std::int32_t beside = state.beside(target);
    for (std::size_t i = first; i < totals.flows.size(); ++i) {
      const Flow& flow = totals.flows[i];
      if (to_int(flow.source) == beside) {
        own.local += flow.bytes;
      } else {
        egress[static_cast<std::size_t>(to_int(flow.source))] += flow.bytes;
      }
    }
  }
  if (gaps) {  // rare: now list them one by one
    std::vector<Gap> all;
    for (std::int32_t r = 0; r < state.to.ranks; ++r) {
      const Plan with_gaps = plan(Rank{r});
      std::vector<Gap> of_rank = gaps_without(with_gaps, lost);
      std::move(of_rank.begin(), of_rank.end(), std::back_inserter(all));
    }
    require_no_gaps(std::move(all));
  }
  finish(totals, egress);
  return totals;
}

std::vector<Flow> Planner::holdings(std::span<const Rank> lost_ranks) {
  State& state = *state_;
  const std::vector<Rank> lost = sorted(lost_ranks);
  std::vector<Flow> holdings;
  SourceSums sums(state.from.ranks);
  std::vector<HeldBox> found;
  for (std::int32_t r = 0; r < state.to.ranks; ++r) {
    const std::int32_t section = state.to_section_of(Rank{r});
    if (section < 0) continue;
    state.classes_of(static_cast<std::uint32_t>(section));
    for (const std::uint32_t id : state.distinct_classes_of(static_cast<std::uint32_t>(section))) {
      // Not by shares: a rank may hold a part of one, which it would take from itself.
      for (const PlacedBox& wanted : state.wanted_boxes(id, Rank{r})) {
        found.clear();
        for (LayoutSearch& source : state.sources_of(id)) source.find(wanted.box, found);
        for (const HeldBox& held : found) {
          if (std::binary_search(lost.begin(), lost.end(), held.rank)) continue;
          sums.add(held.rank, bytes_of(*intersect(wanted.box, held.placed.box), state.classes[id].item_bytes));
        }
      }
    }
    sums.flush(Rank{r}, holdings);
  }
  return holdings;
}

}  // namespace shardwire
