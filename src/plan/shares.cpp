// SPDX-License-Identifier: Apache-2.0
#include "plan/shares.hpp"

#include <algorithm>
#include <numeric>

namespace shardwire {

void Shares::clear() {
  wanted.clear();
  shares.clear();
  holders.clear();
  gaps.clear();
}

void ShareCutter::cut(std::span<LayoutSearch> sources, std::int32_t self, Shares& out) {
  sources_ = sources;
  self_ = self;
  out_ = &out;
  for (std::uint32_t i = 0; i < out.wanted.size(); ++i) cut_one(i);
}

void ShareCutter::cut_one(std::uint32_t wanted) {
  const Box& box = out_->wanted[wanted].box;
  const auto first_share = static_cast<std::ptrdiff_t>(out_->shares.size());
  wanted_ = wanted;
  found_.clear();
  for (LayoutSearch& source : sources_) source.find(box, found_);
  group_replicas(box);
  clips_.clear();
  for (const Group& group : groups_) clips_.push_back(group.clip);
  if (groups_.size() < 2 || !find_overlap(clips_)) {
    take_whole(box);
  } else {
    carve(box);
  }
  std::sort(out_->shares.begin() + first_share, out_->shares.end(),
            [](const Share& a, const Share& b) { return a.box.offset < b.box.offset; });
}

void ShareCutter::group_replicas(const Box& wanted) {
  order_.resize(found_.size());
  std::iota(order_.begin(), order_.end(), 0U);
  std::sort(order_.begin(), order_.end(), [this](std::uint32_t a, std::uint32_t b) {
    const auto by_box = found_[a].placed.box <=> found_[b].placed.box;
    return by_box != 0 ? by_box < 0 : found_[a].rank < found_[b].rank;
  });
  groups_.clear();
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    const Box& box = found_[order_[i]].placed.box;
    if (i == 0 || box != found_[order_[i - 1]].placed.box) groups_.push_back({i, 0, *intersect(wanted, box)});
    ++groups_.back().count;
  }
}

// Disjoint clips are the shares; their volumes tell whether anything is missing.
void ShareCutter::take_whole(const Box& wanted) {
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

// Takes the clips one after another out of what is left of `wanted`: own boxes first, then the large ones, which leaves
// fewer and longer pieces.
void ShareCutter::carve(const Box& wanted) {
  std::vector<std::uint32_t> by_size(groups_.size());
  std::iota(by_size.begin(), by_size.end(), 0U);
  std::stable_sort(by_size.begin(), by_size.end(), [this](std::uint32_t a, std::uint32_t b) {
    const bool own_a = is_own(groups_[a]);
    const bool own_b = is_own(groups_[b]);
    return own_a != own_b ? own_a : groups_[a].clip.volume() > groups_[b].clip.volume();
  });
  std::vector<Box> parts;
  left_.assign(1, wanted);
  for (const std::uint32_t i : by_size) take(groups_[i].clip, [&](const Box& part) { parts.push_back(part); });
  const OverlapIndex tree(clips_);
  std::vector<std::uint32_t> around;
  for (const Box& part : parts) {
    // A part may lie inside further boxes, those of replicas that cut the tensor otherwise: each is one more rank to
    // turn to when a holder is lost.
    tree.find(part, around);
    std::erase_if(around, [&](std::uint32_t i) { return !contains(clips_[i], part); });
    add(part, around);
  }
  out_->gaps.insert(out_->gaps.end(), left_.begin(), left_.end());
}

// Moves what `clip` shares with the boxes left out of them.
template <typename OnPart>
void ShareCutter::take(const Box& clip, OnPart on_part) {
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

void ShareCutter::add(const Box& box, std::span<const std::uint32_t> groups) {
  auto& holders = out_->holders;
  const auto first = static_cast<std::uint32_t>(holders.size());
  for (const std::uint32_t id : groups) {
    const Group& group = groups_[id];
    for (std::uint32_t i = group.first; i < group.first + group.count; ++i) holders.push_back(found_[order_[i]]);
  }
  if (groups.size() > 1) {
    const auto begin = holders.begin() + first;
    std::stable_sort(begin, holders.end(), [](const HeldBox& a, const HeldBox& b) { return a.rank < b.rank; });
    holders.erase(
        std::unique(begin, holders.end(), [](const HeldBox& a, const HeldBox& b) { return a.rank == b.rank; }),
        holders.end());
  }
  out_->shares.push_back({box, wanted_, first, static_cast<std::uint32_t>(holders.size()) - first, groups.size() == 1});
}

bool ShareCutter::is_own(const Group& group) const {
  for (std::uint32_t i = group.first; i < group.first + group.count; ++i) {
    if (to_int(found_[order_[i]].rank) == self_) return true;
  }
  return false;
}

}  // namespace shardwire
