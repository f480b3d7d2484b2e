// SPDX-License-Identifier: Apache-2.0
#include "plan/layout_search.hpp"

#include <algorithm>

namespace shardwire {
namespace {

// Questions answered by looking at every rank: a process that plans for itself alone then keeps a few boxes, not those
// of the whole job.
constexpr int asked_before_index = 2;

}  // namespace

LayoutSearch::LayoutSearch(const Layout& layout, const Extents& shape, std::span<const Rank> ranks)
    : layout_(&layout),
      shape_(shape),
      ranks_(ranks),
      consecutive_(ranks.empty() || to_int(ranks.back()) - to_int(ranks.front()) + 1 == std::ssize(ranks)) {
}

bool LayoutSearch::takes_part(Rank rank) const {
  if (consecutive_) return !ranks_.empty() && rank >= ranks_.front() && rank <= ranks_.back();
  return std::binary_search(ranks_.begin(), ranks_.end(), rank);
}

void LayoutSearch::find(const Box& region, std::vector<HeldBox>& out) {
  const std::size_t before = out.size();
  if (layout_->rule().find(shape_, region, out)) {
    const auto added = out.begin() + static_cast<std::ptrdiff_t>(before);
    out.erase(std::remove_if(added, out.end(), [this](const HeldBox& held) { return !takes_part(held.rank); }),
              out.end());
    return;
  }
  if (!index_ && asked_++ < asked_before_index) return look_at_all(region, out);
  if (!index_) build();
  index_->tree.find(region, hits_);
  for (const std::uint32_t hit : hits_) out.push_back(index_->held[hit]);
}

void LayoutSearch::look_at_all(const Box& region, std::vector<HeldBox>& out) const {
  for (const Rank rank : ranks_) {
    for (const PlacedBox& placed : layout_->boxes_of(shape_, rank)) {
      if (intersect(placed.box, region)) out.push_back({placed, rank});
    }
  }
}

void LayoutSearch::build() {
  index_.emplace();
  std::vector<Box> boxes;
  for (const Rank rank : ranks_) {
    for (const PlacedBox& placed : layout_->boxes_of(shape_, rank)) {
      index_->held.push_back({placed, rank});
      boxes.push_back(placed.box);
    }
  }
  index_->tree = OverlapIndex(boxes);
}

}  // namespace shardwire
