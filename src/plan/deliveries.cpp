// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "plan/planner_state.hpp"
#include "shardwire/error.hpp"

namespace shardwire {

// Searches the target layouts for targets that want a part of what `source` holds, and applies their source choices to
// find the parts that they read from it.
std::vector<Delivery> Planner::deliveries(Rank source, std::span<const Rank> lost_ranks) {
  State& state = *state_;
  if (to_int(source) < 0 || to_int(source) >= state.from.holders()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("source rank {} is out of range 0..{}", to_int(source), state.from.holders() - 1));
  }
  std::vector<Delivery> deliveries;
  const std::int32_t own_section = state.from_section_of(source);
  const std::vector<Rank> lost = sorted(lost_ranks);
  if (own_section < 0 || std::binary_search(lost.begin(), lost.end(), source)) return deliveries;

  struct Taken {
    Rank target{};
    Box box;
  };
  Shares shares;
  std::vector<SourcedBox> parts;
  for (std::uint32_t section = 0; section < state.to.sections.size(); ++section) {
    const std::vector<std::uint32_t>& ids = state.classes_of(section);
    std::unordered_map<std::uint32_t, std::vector<Taken>> taken;  // by class
    for (const std::uint32_t id : state.distinct_classes_of(section)) {
      const auto& layouts = state.classes[id].held->layouts;
      const auto held = std::find_if(layouts.begin(), layouts.end(), [&](const auto& entry) {
        return entry.first == static_cast<std::uint32_t>(own_section);
      });
      if (held == layouts.end()) continue;
      const Extents& shape = state.shape_of(id);
      LayoutSearch wanted(state.layouts.layout(state.classes[id].layout), shape, state.to.sections[section].ranks);
      std::vector<Rank> targets;
      for (const PlacedBox& placed : state.layouts.layout(held->second).boxes_of(shape, state.from.rank_of(source))) {
        wanted.find(placed.box, [&](const PlacedBox&, Rank rank) {
          targets.push_back(rank);
          return true;
        });
      }
      for (const Rank target : sorted(targets)) {
        state.share_out(id, target, shares);
        parts.clear();
        SourceChoice choice = state.choice_for(id, target, lost);
        choice.choose_all(shares, parts);
        for (const SourcedBox& part : parts) {
          if (part.source == source) taken[id].push_back({target, part.box});
        }
      }
    }
    for (std::uint32_t t = 0; t < ids.size(); ++t) {
      const auto of_class = taken.find(ids[t]);
      if (of_class == taken.end()) continue;
      const TensorId held = state.held_tensor(section, TensorId{t}, static_cast<std::uint32_t>(own_section));
      for (const Taken& one : of_class->second) deliveries.push_back({held, one.box, one.target, section, TensorId{t}});
    }
  }
  std::stable_sort(deliveries.begin(), deliveries.end(), [](const Delivery& a, const Delivery& b) {
    return std::tie(a.target, a.wanted) < std::tie(b.target, b.wanted);
  });
  return deliveries;
}

}  // namespace shardwire
