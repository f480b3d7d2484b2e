// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "plan/planner_state.hpp"

namespace shardwire {

void require_no_gaps(std::vector<Gap> gaps) {
  if (gaps.empty()) return;
  constexpr std::size_t named = 3;
  std::string message = gaps.size() == 1 ? "a wanted region has no holder: "
                                         : fmt::format("{} wanted regions have no holder: ", gaps.size());
  for (std::size_t i = 0; i < std::min(gaps.size(), named); ++i) {
    fmt::format_to(std::back_inserter(message), "{}{}:{} {} for rank {}", i == 0 ? "" : "; ", gaps[i].fqn,
                   gaps[i].state, to_string(gaps[i].box), to_int(gaps[i].target));
  }
  if (gaps.size() > named) fmt::format_to(std::back_inserter(message), "; and {} more", gaps.size() - named);
  throw Error(ErrorCode::layout_mismatch, message, std::move(gaps));
}

std::vector<Gap> gaps_without(const Plan& plan, std::span<const Rank> lost) {
  std::vector<Gap> gaps = plan.gaps;
  if (lost.empty()) return gaps;
  std::vector<bool> gone;
  for (const std::vector<Rank>& set : plan.holder_sets) {
    gone.push_back(std::all_of(set.begin(), set.end(),
                               [&](Rank rank) { return std::binary_search(lost.begin(), lost.end(), rank); }));
  }
  for (const Piece& piece : plan.pieces) {
    if (!gone[piece.holders]) continue;
    const TensorKey& key = plan.wanted->tensors[to_index(piece.tensor)].spec.key;
    gaps.push_back({key.fqn, key.state, plan.box(piece), plan.target});
  }
  return gaps;
}

}  // namespace shardwire
