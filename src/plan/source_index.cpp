// SPDX-License-Identifier: Apache-2.0
#include "plan/source_index.hpp"

#include <algorithm>

namespace shardwire {
namespace {

// Questions answered from the boxes near the wanted ones only: a process that plans for itself alone then sorts and
// keeps a few boxes, not those of every rank of the job.
constexpr int asked_before_index = 2;

// Smallest box around all of `boxes`, none when there are none.
std::optional<Box> bounds_of(std::span<const PlacedBox> boxes) {
  if (boxes.empty()) return std::nullopt;
  Box bounds = boxes.front().box;
  for (const PlacedBox& placed : boxes) {
    for (std::size_t dim = 0; dim < bounds.dims(); ++dim) {
      const Extent upper = std::max(bounds.upper(dim), placed.box.upper(dim));
      bounds.offset[dim] = std::min(bounds.lower(dim), placed.box.lower(dim));
      bounds.size[dim] = upper - bounds.offset[dim];
    }
  }
  return bounds;
}

}  // namespace

// All held boxes, or those that meet `near`.
HeldBoxes SourceIndex::collect(const std::optional<Box>& near) const {
  std::vector<std::pair<Box, Rank>> held;
  for (const Source& source : sources_) {
    for (const Rank rank : source.ranks) {
      for (const PlacedBox& placed : source.layout->boxes_of(shape_, rank)) {
        if (!near || intersect(*near, placed.box)) held.emplace_back(placed.box, rank);
      }
    }
  }
  return merge_replicas(std::move(held));
}

class SourceIndex::Cutter {
 public:
  Cutter(const Known& index, Rank self, Shares& out) : index_(index), self_(self), out_(out) {}

  void cut(const Box& wanted) {
    const auto first_share = static_cast<std::ptrdiff_t>(out_.shares.size());
    index_.tree.find(wanted, found_);
    clips_.clear();
    clip_boxes_.clear();
    for (const std::uint32_t id : found_) {
      clip_boxes_.push_back(*intersect(wanted, index_.held.boxes[id]));
      clips_.push_back({clip_boxes_.back(), id});
    }
    if (!find_overlap(clip_boxes_)) {
      take_whole(wanted);
    } else {
      carve(wanted);
    }
    std::sort(out_.shares.begin() + first_share, out_.shares.end(),
              [](const Share& a, const Share& b) { return a.box.offset < b.box.offset; });
  }

 private:
  struct Clip {
    Box box;
    std::uint32_t id;
  };
  struct Part {
    Box box;
    std::vector<std::uint32_t> within;  // held boxes that contain it
  };

  // Disjoint clips are the pieces; their volumes tell whether anything is missing.
  void take_whole(const Box& wanted) {
    ElementCount held = 0;
    for (const Clip& clip : clips_) {
      held += clip.box.volume();
      add({clip.box, {clip.id}});
    }
    if (held == wanted.volume()) return;
    left_.assign(1, wanted);
    for (const Clip& clip : clips_) take(clip.box, [](const Box&) {});
    out_.gaps.insert(out_.gaps.end(), left_.begin(), left_.end());
  }

  // Takes the clips one after another out of what is left of `wanted`: own boxes first, then the large ones, which
  // leaves fewer and longer pieces.
  void carve(const Box& wanted) {
    std::stable_sort(clips_.begin(), clips_.end(), [this](const Clip& a, const Clip& b) {
      const bool own_a = is_own(a.id);
      const bool own_b = is_own(b.id);
      return own_a != own_b ? own_a : a.box.volume() > b.box.volume();
    });
    std::vector<Box> parts;
    left_.assign(1, wanted);
    for (const Clip& clip : clips_) take(clip.box, [&](const Box& part) { parts.push_back(part); });
    for (const Box& part : parts) add({part, boxes_around(part)});
    out_.gaps.insert(out_.gaps.end(), left_.begin(), left_.end());
  }

  // Moves what `clip` shares with the boxes left out of them.
  template <typename OnPart>
  void take(const Box& clip, OnPart on_part) {
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

  // A part may lie inside further boxes, those of replicas that cut the tensor otherwise: each is one more rank to
  // turn to when a holder is lost.
  std::vector<std::uint32_t> boxes_around(const Box& part) {
    index_.tree.find(part, found_);
    std::vector<std::uint32_t> around;
    for (const std::uint32_t id : found_) {
      if (contains(index_.held.boxes[id], part)) around.push_back(id);
    }
    return around;
  }

  void add(const Part& part) {
    const auto [entry, fresh] = sets_.try_emplace(part.within, static_cast<std::uint32_t>(out_.holder_sets.size()));
    if (fresh) {
      std::vector<Rank>& holders = out_.holder_sets.emplace_back();
      for (const std::uint32_t id : part.within) {
        const auto of_box = index_.held.holders_of(id);
        holders.insert(holders.end(), of_box.begin(), of_box.end());
      }
      if (part.within.size() > 1) {
        std::sort(holders.begin(), holders.end());
        holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
      }
    }
    out_.shares.push_back({part.box, entry->second});
  }

  [[nodiscard]] bool is_own(std::uint32_t id) const {
    const auto holders = index_.held.holders_of(id);
    return std::binary_search(holders.begin(), holders.end(), self_);
  }

  const Known& index_;
  Rank self_;
  Shares& out_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> sets_;  // held boxes -> place in out_.holder_sets
  std::vector<std::uint32_t> found_;
  std::vector<Clip> clips_;
  std::vector<Box> clip_boxes_;
  std::vector<Box> left_;   // of the wanted box
  std::vector<Box> still_;  // scratch of take()
};

Shares SourceIndex::share_out(std::span<const PlacedBox> wanted, Rank self) {
  Shares out;
  const auto cut_with = [&](const Known& known) {
    Cutter cutter(known, self, out);
    for (const PlacedBox& placed : wanted) cutter.cut(placed.box);
  };
  if (wanted.empty()) return out;
  if (!all_ && asked_++ < asked_before_index) {
    cut_with(Known(collect(bounds_of(wanted))));
  } else {
    if (!all_) all_.emplace(collect(std::nullopt));
    cut_with(*all_);
  }
  return out;
}

}  // namespace shardwire
