// SPDX-License-Identifier: Apache-2.0
#include "geometry/rank_list.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shardwire/error.hpp"

namespace shardwire {
namespace {

// The step from each rank to the next; 0 if they differ, or if the ranks do not ascend.
Extent step_of(const std::vector<Rank>& ranks) {
  const auto step_to = [&](std::size_t i) { return Extent{to_int(ranks[i])} - to_int(ranks[i - 1]); };
  if (ranks.size() < 2) return 1;
  for (std::size_t i = 2; i < ranks.size(); ++i) {
    if (step_to(i) != step_to(1)) return 0;
  }
  return std::max<Extent>(step_to(1), 0);
}

// Ascending by rank.
std::vector<std::pair<Rank, Extent>> positions_in(const std::vector<Rank>& ranks) {
  std::vector<std::pair<Rank, Extent>> positions;
  positions.reserve(ranks.size());
  for (const Rank rank : ranks) positions.emplace_back(rank, static_cast<Extent>(positions.size()));
  std::sort(positions.begin(), positions.end());
  return positions;
}

void check_positions(const std::vector<std::pair<Rank, Extent>>& positions, std::string_view layout) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} layout: {}", layout, why));
  };
  if (!positions.empty() && to_int(positions.front().first) < 0) {
    refuse(fmt::format("position {} has rank {}", positions.front().second, to_int(positions.front().first)));
  }
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto twice = std::adjacent_find(positions.begin(), positions.end(), same);
  if (twice == positions.end()) return;
  refuse(fmt::format("rank {} is at positions {} and {}", to_int(twice->first), twice->second, twice[1].second));
}

}  // namespace

RankList::RankList(std::vector<Rank> ranks, std::string_view layout) : size_(static_cast<Extent>(ranks.size())) {
  std::vector<std::pair<Rank, Extent>> positions = positions_in(ranks);
  check_positions(positions, layout);
  if (const Extent step = step_of(ranks); step > 0) {
    first_ = ranks.empty() ? 0 : to_int(ranks.front());
    step_ = step;
  } else {
    ranks_ = std::move(ranks);
    positions_ = std::move(positions);
  }
}

Extent RankList::end() const {
  if (!regular()) return Extent{to_int(positions_.back().first)} + 1;
  return size_ == 0 ? first_ : first_ + (size_ - 1) * step_ + 1;
}

Rank RankList::at(Extent position) const {
  if (!regular()) return ranks_[static_cast<std::size_t>(position)];
  return Rank{static_cast<std::int32_t>(first_ + position * step_)};
}

Extent RankList::position_of(Rank rank) const {
  if (regular()) {
    const Extent distance = to_int(rank) - first_;
    return distance >= 0 && distance % step_ == 0 && distance / step_ < size_ ? distance / step_ : -1;
  }
  const auto found = std::lower_bound(positions_.begin(), positions_.end(), std::pair(rank, Extent{0}));
  return found != positions_.end() && found->first == rank ? found->second : -1;
}

std::vector<Extent> RankList::numbers() const {
  std::vector<Extent> numbers;
  numbers.reserve(static_cast<std::size_t>(size_));
  for (Extent position = 0; position < size_; ++position) numbers.push_back(to_int(at(position)));
  return numbers;
}

}  // namespace shardwire
