// SPDX-License-Identifier: Apache-2.0
#include "plan/other_holders.hpp"

#include <map>
#include <unordered_map>
#include <utility>

#include "plan/planner_state.hpp"

namespace shardwire {

/// A holder of a part of a piece, for all tensors of one class.
struct OtherHolders::Found {
  std::uint32_t piece = 0;  // among those of one tensor
  std::uint32_t region = 0;
  Rank rank{};
  std::uint32_t section = 0;
};

OtherHolders::OtherHolders(Planner& planner, const Plan& plan) {
  Planner::State& state = *planner.state_;
  const std::optional<std::uint32_t> section = state.section_of_target(plan.target);
  if (!section) return;
  const std::vector<std::uint32_t>& classes = state.classes_of(*section);
  std::unordered_map<std::uint32_t, std::vector<Found>> known;
  std::map<Rank, OfRank> by_rank;
  const auto pieces = static_cast<std::uint32_t>(plan.pieces.size());
  for (std::uint32_t first = 0, end = 0; first < pieces; first = end) {
    const TensorId tensor = plan.pieces[first].tensor;
    while (end < pieces && plan.pieces[end].tensor == tensor) ++end;
    const auto [entry, fresh] = known.try_emplace(classes[to_index(tensor)]);
    if (fresh) find(state, entry->first, plan, first, end, entry->second);
    for (const Found& one : entry->second) {
      OfRank& holder = by_rank.try_emplace(one.rank, OfRank{one.rank, one.section, {}}).first->second;
      holder.parts.push_back({first + one.piece, one.region, state.held_tensor(*section, tensor, one.section)});
    }
  }
  for (auto& [rank, holder] : by_rank) ranks_.push_back(std::move(holder));
}

void OtherHolders::find(Planner::State& state, std::uint32_t of_class, const Plan& plan, std::uint32_t first,
                        std::uint32_t end, std::vector<Found>& found) {
  std::vector<LayoutSearch>& sources = state.sources_of(of_class);
  const auto& sections = state.classes[of_class].held->layouts;
  for (std::uint32_t i = first; i < end; ++i) {
    const Box& piece = plan.box(plan.pieces[i]);
    const Rank read_from = plan.holder_sets[plan.pieces[i].holders].front();
    std::map<Box, std::uint32_t> regions;  // replicas of a box share one
    for (std::size_t s = 0; s < sources.size(); ++s) {
      sources[s].find(piece, [&](const PlacedBox& held, Rank rank) {
        if (rank == read_from) return true;
        const auto [region, fresh] =
            regions.try_emplace(*intersect(piece, held.box), static_cast<std::uint32_t>(regions_.size()));
        if (fresh) regions_.push_back(region->first);
        found.push_back({i - first, region->second, rank, sections[s].first});
        return true;
      });
    }
  }
}

}  // namespace shardwire
