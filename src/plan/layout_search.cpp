// SPDX-License-Identifier: Apache-2.0
#include "plan/layout_search.hpp"

#include <algorithm>

namespace shardwire {
namespace {

// Queries answered by scanning every rank: a process that plans only for itself then stores a few boxes, not those of
// the whole job.
constexpr int asked_before_index = 2;

}  // namespace

LayoutSearch::LayoutSearch(const Layout& layout, const Extents& shape, std::span<const Rank> ranks,
                           const Copies* copies)
    : layout_(&layout),
      shape_(shape),
      ranks_(ranks),
      copies_(copies),
      consecutive_(ranks.empty() || to_int(ranks.back()) - to_int(ranks.front()) + 1 == std::ssize(ranks)) {
}

bool LayoutSearch::takes_part(Rank rank) const {
  if (consecutive_) return !ranks_.empty() && rank >= ranks_.front() && rank <= ranks_.back();
  return std::binary_search(ranks_.begin(), ranks_.end(), rank);
}

void LayoutSearch::find(const Box& region, OnBox on_box) {
  if (copies_ == nullptr || copies_->empty()) return find_ranks(region, on_box);
  find_ranks(region, [&](const PlacedBox& placed, Rank rank) {
    if (!on_box(placed, rank)) return false;
    const auto [first, end] = copies_->equal_range(rank);
    return std::all_of(first, end, [&](const auto& copy) { return on_box(placed, copy.second); });
  });
}

void LayoutSearch::find_ranks(const Box& region, OnBox on_box) {
  const auto on_taking_part = [&](const PlacedBox& placed, Rank rank) {
    return !takes_part(rank) || on_box(placed, rank);
  };
  if (layout_->rule().find(shape_, region, on_taking_part)) return;
  if (!index_ && asked_++ < asked_before_index) return look_at_all(region, on_box);
  if (!index_) build();
  index_->tree.find(region, hits_);
  for (const std::uint32_t hit : hits_) {
    const PlacedBox& placed = index_->held[hit];
    if (!index_->held.each_rank(hit, [&](Rank rank) { return on_box(placed, rank); })) return;
  }
}

void LayoutSearch::look_at_all(const Box& region, OnBox on_box) const {
  for (const Rank rank : ranks_) {
    for (const PlacedBox& placed : layout_->boxes_of(shape_, rank)) {
      if (intersect(placed.box, region) && !on_box(placed, rank)) return;
    }
  }
}

void LayoutSearch::build() {
  index_ = std::make_unique<Index>();
  for (const Rank rank : ranks_) {
    for (const PlacedBox& placed : layout_->boxes_of(shape_, rank)) index_->held.add(placed, rank);
  }
  std::vector<Box> boxes;
  boxes.reserve(index_->held.size());
  for (std::size_t i = 0; i < index_->held.size(); ++i) boxes.push_back(index_->held[i].box);
  index_->tree = OverlapIndex(boxes);
}

}  // namespace shardwire
