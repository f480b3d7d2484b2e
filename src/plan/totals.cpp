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
  // Appends the sums by source and resets them.
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

// Sums over target ranks, one after another.
class RunningTotals {
 public:
  /// Without `on_target` flows are not summed.
  RunningTotals(int sources, const OnTarget& on_target)
      : on_target_(on_target), egress_(static_cast<std::size_t>(sources)), sums_(on_target ? sources : 0) {}

  void begin(Rank target, std::int32_t colocated) {
    target_ = target;
    colocated_ = colocated;
    own_ = {};
  }
  void add(Rank source, ByteCount bytes, std::uint64_t pieces, ElementCount runs) {
    own_.needed = support::add(own_.needed, bytes, overflowing);
    own_.pieces += pieces;
    own_.runs = support::add(own_.runs, runs, overflowing);
    if (to_int(source) == colocated_) {
      own_.local += bytes;
    } else {
      ByteCount& egress = egress_[static_cast<std::size_t>(to_int(source))];
      egress = support::add(egress, bytes, overflowing);
    }
    if (on_target_) sums_.add(source, bytes);
  }
  void add_gaps(std::uint64_t gaps) { totals_.gaps += gaps; }
  void end() {
    totals_.needed = support::add(totals_.needed, own_.needed, overflowing);
    totals_.local += own_.local;
    totals_.pieces += own_.pieces;
    totals_.runs = support::add(totals_.runs, own_.runs, overflowing);
    totals_.max_ingress = std::max(totals_.max_ingress, own_.needed - own_.local);
    if (!on_target_) return;
    flows_.clear();
    sums_.flush(target_, flows_);
    on_target_(target_, own_, flows_);
  }
  JobTotals totals() {
    totals_.remote = totals_.needed - totals_.local;
    if (!egress_.empty()) totals_.max_egress = *std::max_element(egress_.begin(), egress_.end());
    return std::move(totals_);
  }

 private:
  const OnTarget& on_target_;
  std::vector<ByteCount> egress_;
  JobTotals totals_;
  Rank target_{};
  std::int32_t colocated_ = -1;
  TargetTotals own_;
  SourceSums sums_;
  std::vector<Flow> flows_;
};

}  // namespace

JobTotals Planner::State::tally(std::span<const Rank> targets, std::span<const Rank> lost, const OnTarget& on_target) {
  RunningTotals tally(from.holders(), on_target);
  std::vector<SourcedBox> parts;
  const auto add = [&](const Shares& shares, SourceChoice& choice, std::uint32_t id) {
    const Class& of_tensor = classes[id];
    parts.clear();
    const std::uint64_t gaps = shares.gaps.size() + choice.choose_all(shares, parts);
    for (const SourcedBox& part : parts) {
      const ElementCount runs =
          runs_of(part.box, shares.held[part.held], shares.wanted[shares.shares[part.share].wanted]);
      tally.add(part.source, bytes_of(part.box, of_tensor.item_bytes), of_tensor.tensors.size(),
                support::multiply(runs, std::ssize(of_tensor.tensors), overflowing));
    }
    tally.add_gaps(gaps * of_tensor.tensors.size());
    return true;
  };
  for (const Rank target : targets) {
    tally.begin(target, colocated(target));
    if (const auto section = section_of_target(target)) {
      for (const std::uint32_t id : distinct_classes_of(*section)) {
        SourceChoice choice = choice_for(id, target, lost);
        share_out(id, target, lost, [&](const Shares& shares) { return add(shares, choice, id); });
      }
    }
    tally.end();
  }
  return tally.totals();
}

JobTotals Planner::totals(std::span<const Rank> lost_ranks) {
  const std::vector<Rank> lost = sorted(lost_ranks);
  const std::vector<Rank> targets = state_->targets();
  std::vector<TargetTotals> by_target;
  by_target.reserve(targets.size());
  std::vector<Flow> flows;
  JobTotals totals = state_->tally(targets, lost, [&](Rank, const TargetTotals& own, std::span<const Flow> of_target) {
    by_target.push_back(own);
    flows.insert(flows.end(), of_target.begin(), of_target.end());
  });
  if (totals.gaps > 0) {  // rare: list them one by one
    std::vector<Gap> all;
    for (const Rank target : targets) {
      std::vector<Gap> of_rank = gaps_without(plan(target), lost);
      std::move(of_rank.begin(), of_rank.end(), std::back_inserter(all));
    }
    require_no_gaps(std::move(all));
  }
  totals.targets = std::move(by_target);
  totals.flows = std::move(flows);
  return totals;
}

JobTotals Planner::tally(std::span<const Rank> targets, const OnTarget& on_target) {
  return state_->tally(targets, {}, on_target);
}

std::vector<Flow> Planner::holdings(std::span<const Rank> lost_ranks) {
  State& state = *state_;
  const std::vector<Rank> lost = sorted(lost_ranks);
  std::vector<Flow> holdings;
  SourceSums sums(state.from.holders());
  for (const Rank target : state.targets()) {
    const std::optional<std::uint32_t> section = state.section_of_target(target);
    if (!section) continue;
    for (const std::uint32_t id : state.distinct_classes_of(*section)) {
      // Not by shares: a rank may hold a part of a share, which it would take from itself.
      for (const PlacedBox& wanted : state.wanted_boxes(id, target)) {
        const auto on_box = [&](const PlacedBox& held, Rank source) {
          if (std::binary_search(lost.begin(), lost.end(), source)) return true;
          sums.add(source, bytes_of(*intersect(wanted.box, held.box), state.classes[id].item_bytes));
          return true;
        };
        for (LayoutSearch& source : state.sources_of(id)) source.find(wanted.box, on_box);
      }
    }
    sums.flush(target, holdings);
  }
  return holdings;
}

}  // namespace shardwire
