// SPDX-License-Identifier: Apache-2.0
#include "plan/shares.hpp"

#include <algorithm>
#include <numeric>

namespace shardwire {
namespace {

// Maximum boxes to split together, if a split is possible; also the number of shares and holders per part.
constexpr std::size_t boxes_at_once = 4096;
constexpr std::size_t shares_at_once = 4096;
constexpr std::size_t holders_at_once = 1u << 16;

}  // namespace

void Shares::clear_found() {
  shares.clear();
  holders.clear();
  held.clear();
  gaps.clear();
}

void Shares::clear() {
  wanted.clear();
  clear_found();
}

void ShareSplitter::split(std::span<LayoutSearch> sources, std::int32_t self, Shares& out) {
  sources_ = sources;
  self_ = self;
  out_ = &out;
  for (std::uint32_t i = 0; i < out.wanted.size(); ++i) {
    search(out.wanted[i].box, FoundBoxes::no_limit);
    split_found(i, out.wanted[i].box);
  }
}

void ShareSplitter::split_in_parts(std::span<LayoutSearch> sources, std::int32_t self, Shares& out,
                                   support::FunctionRef<bool()> on_part) {
  sources_ = sources;
  self_ = self;
  out_ = &out;
  for (std::uint32_t i = 0; i < out.wanted.size(); ++i) {
    const auto split_region = [&](const Box& region) {
      split_found(i, region);
      const bool much = out.shares.size() + out.gaps.size() >= shares_at_once || out.holders.size() >= holders_at_once;
      if (!much) return true;
      const bool more = on_part();
      out.clear_found();
      return more;
    };
    const Box& box = out.wanted[i].box;
    search(box, boxes_at_once);
    bool more = true;
    if (!found_.full()) {
      more = split_region(box);
    } else if (each_region(box, [this](const Box& region) { return is_disjoint(region); })) {
      more = each_region(box, split_region);
    } else {
      search(box, FoundBoxes::no_limit);
      more = split_region(box);
    }
    if (!more) return;
  }
  if (!out.shares.empty() || !out.gaps.empty()) on_part();
}

// Splits `wanted` into regions with at most that many boxes, and calls visit(region) with the boxes found in each,
// until it returns false. Returns false in that case, and if no border to split at exists.
template <typename Visit>
bool ShareSplitter::each_region(const Box& wanted, Visit visit) {
  std::vector<Box> open{wanted};
  while (!open.empty()) {
    const Box region = open.back();
    open.pop_back();
    search(region, boxes_at_once);
    if (found_.full() ? !split(region, open) : !visit(region)) return false;
  }
  return true;
}

// Whether no two of the boxes found share an element of `region`. Only then are the shares independent of the split.
bool ShareSplitter::is_disjoint(const Box& region) {
  group_replicas(region);
  return groups_.size() < 2 || !find_overlap(clips_);
}

void ShareSplitter::search(const Box& region, std::size_t max_boxes) {
  found_.clear(max_boxes);
  for (LayoutSearch& source : sources_) {
    source.find(region, [&](const PlacedBox& placed, Rank rank) { return found_.add(placed, rank); });
  }
}

// A coordinate near the middle of a dim that no held box crosses.
std::optional<Extent> ShareSplitter::border(const Box& region, std::size_t dim) {
  constexpr int tries = 8;
  Extent at = region.lower(dim) + region.size[dim] / 2;
  for (int i = 0; i < tries && at > region.lower(dim) && at < region.upper(dim); ++i) {
    Box around = region;
    around.offset[dim] = at - 1;
    around.size[dim] = 2;
    Extent below = at;
    Extent above = at;
    const auto on_box = [&](const PlacedBox& placed, Rank) {
      if (placed.box.lower(dim) >= at || placed.box.upper(dim) <= at) return true;
      below = std::min(below, placed.box.lower(dim));
      above = std::max(above, placed.box.upper(dim));
      return true;
    };
    for (LayoutSearch& source : sources_) source.find(around, on_box);
    if (above == at) return at;
    at = above < region.upper(dim) ? above : below;
  }
  return std::nullopt;
}

bool ShareSplitter::split(const Box& region, std::vector<Box>& parts) {
  for (std::size_t dim = 0; dim < region.dims(); ++dim) {
    const std::optional<Extent> at = border(region, dim);
    if (!at) continue;
    Box low = region;
    Box high = region;
    low.size[dim] = *at - region.lower(dim);
    high.offset[dim] = *at;
    high.size[dim] = region.upper(dim) - *at;
    parts.insert(parts.end(), {high, low});
    return true;
  }
  return false;
}

void ShareSplitter::split_found(std::uint32_t wanted, const Box& region) {
  const auto first_share = static_cast<std::ptrdiff_t>(out_->shares.size());
  wanted_ = wanted;
  first_held_ = static_cast<std::uint32_t>(out_->held.size());
  for (std::size_t i = 0; i < found_.size(); ++i) out_->held.push_back(found_[i]);
  if (is_disjoint(region)) {
    take_whole(region);
  } else {
    carve(region);
  }
  std::sort(out_->shares.begin() + first_share, out_->shares.end(),
            [](const Share& a, const Share& b) { return a.box.offset < b.box.offset; });
}

void ShareSplitter::group_replicas(const Box& wanted) {
  order_.resize(found_.size());
  std::iota(order_.begin(), order_.end(), 0U);
  std::sort(order_.begin(), order_.end(), [this](std::uint32_t a, std::uint32_t b) {
    const auto by_box = found_[a].box <=> found_[b].box;
    return by_box != 0 ? by_box < 0 : a < b;
  });
  groups_.clear();
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    const Box& box = found_[order_[i]].box;
    if (i == 0 || box != found_[order_[i - 1]].box) groups_.push_back({i, 0, *intersect(wanted, box)});
    ++groups_.back().count;
  }
  clips_.clear();
  for (const Group& group : groups_) clips_.push_back(group.clip);
}

// Disjoint clips are the shares; their volumes show whether anything is missing.
void ShareSplitter::take_whole(const Box& wanted) {
  ElementCount held = 0;
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    held += groups_[i].clip.volume();
    add(groups_[i].clip, {&i, 1});
  }
  if (held == wanted.volume()) return;
  left_.assign(1, wanted);
  for (const Group& group : groups_) take(group.clip, [](const Box&) {});
  out_->gaps.insert(out_->gaps.end(), left_.begin(), left_.end());
}

// Removes the clips one after another from the rest of `wanted`: own boxes first, then the others in their order.
void ShareSplitter::carve(const Box& wanted) {
  std::vector<std::uint32_t> in_order(groups_.size());
  std::iota(in_order.begin(), in_order.end(), 0U);
  if (by_ == Order::by_rank) {
    for (Group& group : groups_) group.first_rank = first_rank_of(group);
  }
  std::stable_sort(in_order.begin(), in_order.end(),
                   [this](std::uint32_t a, std::uint32_t b) { return is_before(groups_[a], groups_[b]); });
  std::vector<Box> parts;
  left_.assign(1, wanted);
  for (const std::uint32_t i : in_order) take(groups_[i].clip, [&](const Box& part) { parts.push_back(part); });
  const OverlapIndex tree(clips_);
  std::vector<std::uint32_t> around;
  for (const Box& part : parts) {
    // A part may lie inside further boxes, those of replicas with another split of the tensor: each is an additional
    // source if a holder is lost.
    tree.find(part, around);
    std::erase_if(around, [&](std::uint32_t i) { return !contains(clips_[i], part); });
    add(part, around);
  }
  out_->gaps.insert(out_->gaps.end(), left_.begin(), left_.end());
}

// Removes the common part of `clip` and the remaining boxes from them.
template <typename OnPart>
void ShareSplitter::take(const Box& clip, OnPart on_part) {
  still_.clear();
  for (const Box& rest : left_) {
    if (const auto common = intersect(rest, clip)) {
      on_part(*common);
      subtract(rest, *common, still_);
    } else {
      still_.push_back(rest);
    }
  }
  left_.swap(still_);
}

void ShareSplitter::add(const Box& box, std::span<const std::uint32_t> groups) {
  auto& holders = out_->holders;
  const auto first = static_cast<std::uint32_t>(holders.size());
  for (const std::uint32_t id : groups) {
    const Group& group = groups_[id];
    for (std::uint32_t i = group.first; i < group.first + group.count; ++i) {
      found_.each_rank(order_[i], [&](Rank rank) {
        holders.push_back({rank, first_held_ + order_[i]});
        return true;
      });
    }
  }
  const auto begin = holders.begin() + first;
  const auto by_rank = [](const Holder& a, const Holder& b) { return a.rank < b.rank; };
  if (!std::is_sorted(begin, holders.end(), by_rank)) std::stable_sort(begin, holders.end(), by_rank);
  if (groups.size() > 1) {
    const auto same = [](const Holder& a, const Holder& b) { return a.rank == b.rank; };
    holders.erase(std::unique(begin, holders.end(), same), holders.end());
  }
  out_->shares.push_back({box, wanted_, first, static_cast<std::uint32_t>(holders.size()) - first, groups.size() == 1});
}

bool ShareSplitter::is_before(const Group& a, const Group& b) const {
  if (by_ == Order::by_rank) return a.first_rank < b.first_rank;
  const bool own_a = is_own(a);
  const bool own_b = is_own(b);
  return own_a != own_b ? own_a : a.clip.volume() > b.clip.volume();
}

std::int32_t ShareSplitter::first_rank_of(const Group& group) const {
  std::int32_t first = std::numeric_limits<std::int32_t>::max();
  for (std::uint32_t i = group.first; i < group.first + group.count; ++i) {
    found_.each_rank(order_[i], [&](Rank rank) {
      first = std::min(first, to_int(rank));
      return true;
    });
  }
  return first;
}

bool ShareSplitter::is_own(const Group& group) const {
  const auto other = [this](Rank rank) { return to_int(rank) != self_; };
  for (std::uint32_t i = group.first; i < group.first + group.count; ++i) {
    if (!found_.each_rank(order_[i], other)) return true;
  }
  return false;
}

}  // namespace shardwire
