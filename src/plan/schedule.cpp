// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "plan/planner_state.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
std::vector<std::uint32_t> posting_order(std::span<const Rank> of_items, Rank target, std::int32_t own) {
  std::unordered_map<Rank, std::vector<std::uint32_t>> by_source;
  for (std::uint32_t i = 0; i < of_items.size(); ++i) by_source[of_items[i]].push_back(i);
  std::vector<Rank> sources;
  sources.reserve(by_source.size());
  for (const auto& [source, list] : by_source) sources.push_back(source);
  std::sort(sources.begin(), sources.end());
  if (!sources.empty()) {
    const auto start = static_cast<std::size_t>(to_int(target)) % sources.size();
    std::rotate(sources.begin(), sources.begin() + static_cast<std::ptrdiff_t>(start), sources.end());
  }
  std::vector<const std::vector<std::uint32_t>*> open;
  const std::vector<std::uint32_t>* local = nullptr;
  for (const Rank source : sources) {
    const auto* list = &by_source.at(source);
    to_int(source) == own ? static_cast<void>(local = list) : open.push_back(list);
  }
  std::vector<std::uint32_t> order;
  order.reserve(of_items.size());
  for (std::size_t round = 0; !open.empty(); ++round) {
    for (const auto* list : open) order.push_back((*list)[round]);
    std::erase_if(open, [&](const auto* list) { return list->size() == round + 1; });
  }
  if (local != nullptr) order.insert(order.end(), local->begin(), local->end());
  return order;
}

Schedule Planner::schedule(const Plan& plan, std::span<const Rank> lost_ranks) {
  State& state = *state_;
  const std::vector<Rank> lost = sorted(lost_ranks);
  require_no_gaps(gaps_without(plan, lost));
  Schedule schedule;
  if (plan.wanted == nullptr) return schedule;

  struct OfClass {
    std::vector<ScheduledPiece> parts;  // `piece` counts from the tensor's first one
    std::uint32_t shares = 0;
  };
  const auto section = static_cast<std::uint32_t>(state.to_section_of(plan.target));
  const std::vector<std::uint32_t>& ids = state.classes_of(section);
  std::unordered_map<std::uint32_t, OfClass> known;
  Shares shares;
  std::vector<SourcedBox> parts;
  for (const std::uint32_t id : state.distinct_classes_of(section)) {
    state.share_out(id, plan.target, shares);
    parts.clear();
    SourceChoice choice = state.choice_for(id, plan.target, lost);
    choice.choose_all(shares, parts);
    OfClass& entry = known[id];
    entry.shares = static_cast<std::uint32_t>(shares.shares.size());
    for (const SourcedBox& part : parts) {
      entry.parts.push_back({part.share, static_cast<std::uint32_t>(schedule.regions.size()), part.source,
                             static_cast<std::uint32_t>(state.from_section_of(part.source)), TensorId{}, 0});
      schedule.regions.push_back(part.box);
    }
  }

  std::vector<ScheduledPiece> items;
  items.reserve(plan.pieces.size());
  std::vector<Rank> sources;
  std::uint32_t first_piece = 0;
  std::pair<std::uint32_t, const OfClass*> last{State::by_value, nullptr};
  for (std::uint32_t t = 0; t < ids.size(); ++t) {
    if (ids[t] == State::by_value) continue;
    if (ids[t] != last.first) last = {ids[t], &known.at(ids[t])};
    for (ScheduledPiece item : last.second->parts) {
      item.piece += first_piece;
      item.held = state.held_tensor(section, TensorId{t}, item.section);
      items.push_back(item);
      sources.push_back(item.source);
    }
    first_piece += last.second->shares;
  }
  if (first_piece != plan.pieces.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the plan of target rank {} is not of this planner", to_int(plan.target)));
  }
  schedule.items.reserve(items.size());
  for (const std::uint32_t i : posting_order(sources, plan.target, state.colocated(plan.target))) {
    schedule.items.push_back(items[i]);
  }
  return schedule;
}

}  // namespace shardwire
