// SPDX-License-Identifier: Apache-2.0
#include "plan/source_index.hpp"

#include <algorithm>

namespace shardwire {
namespace {

HeldBoxes collect(const Extents& shape, std::span<const Source> sources) {
  std::vector<std::pair<Box, Rank>> held;
  for (const Source& source : sources) {
    for (const Rank rank : source.ranks) {
      for (const PlacedBox& placed : source.layout->boxes_of(shape, rank)) held.emplace_back(placed.box, rank);
    }
  }
  return merge_replicas(std::move(held));
}

}  // namespace

SourceIndex::SourceIndex(const Extents& shape, std::span<const Source> sources)
    : held_(collect(shape, sources)), index_(held_.boxes), disjoint_(!index_.find_overlap()) {
}

class SourceIndex::Cutter {
 public:
  Cutter(const SourceIndex& index, Rank self, Shares& out) : index_(index), self_(self), out_(out) {}

  void cut(const Box& wanted) {
    const auto first_share = static_cast<std::ptrdiff_t>(out_.shares.size());
    index_.index_.find(wanted, found_);
    clips_.clear();
    ElementCount held = 0;
    for (const std::uint32_t id : found_) {
      const Box clip = *intersect(wanted, index_.held_.boxes[id]);
      held += index_.disjoint_ ? clip.volume() : 0;  // disjoint parts of a box whose volume fits
      clips_.push_back({clip, id});
    }
    if (index_.disjoint_ && held == wanted.volume()) {
      for (const Clip& clip : clips_) add({clip.box, {clip.id}});
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

  // Takes the clips one after another out of what is left of `wanted`: own boxes first, then the large ones, which
  // leaves fewer and longer pieces.
  void carve(const Box& wanted) {
    std::stable_sort(clips_.begin(), clips_.end(), [this](const Clip& a, const Clip& b) {
      const bool own_a = is_own(a.id);
      const bool own_b = is_own(b.id);
      if (own_a != own_b) return own_a;
      return !index_.disjoint_ && a.box.volume() > b.box.volume();
    });
    std::vector<Box> left{wanted};
    std::vector<Box> still;
    std::vector<Part> parts;
    for (const Clip& clip : clips_) {
      still.clear();
      for (const Box& rest : left) {
        if (const auto common = intersect(rest, clip.box)) {
          parts.push_back({*common, {clip.id}});
          subtract(rest, *common, still);
        } else {
          still.push_back(rest);
        }
      }
      left.swap(still);
    }
    for (Part& part : parts) {
      if (!index_.disjoint_) widen(part);
      add(part);
    }
    out_.gaps.insert(out_.gaps.end(), left.begin(), left.end());
  }

  // A part may lie inside further boxes, those of replicas that cut the tensor otherwise: each is one more rank to
  // turn to when a holder is lost.
  void widen(Part& part) {
    index_.index_.find(part.box, found_);
    part.within.clear();
    for (const std::uint32_t id : found_) {
      if (contains(index_.held_.boxes[id], part.box)) part.within.push_back(id);
    }
  }

  void add(const Part& part) {
    const auto [entry, fresh] = sets_.try_emplace(part.within, static_cast<std::uint32_t>(out_.holder_sets.size()));
    if (fresh) {
      std::vector<Rank>& holders = out_.holder_sets.emplace_back();
      for (const std::uint32_t id : part.within) {
        const auto of_box = index_.held_.holders_of(id);
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
    const auto holders = index_.held_.holders_of(id);
    return std::binary_search(holders.begin(), holders.end(), self_);
  }

  const SourceIndex& index_;
  Rank self_;
  Shares& out_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> sets_;  // held boxes -> place in out_.holder_sets
  std::vector<std::uint32_t> found_;
  std::vector<Clip> clips_;
};

Shares SourceIndex::share_out(std::span<const PlacedBox> wanted, Rank self) const {
  Shares out;
  Cutter cutter(*this, self, out);
  for (const PlacedBox& placed : wanted) cutter.cut(placed.box);
  return out;
}

}  // namespace shardwire
