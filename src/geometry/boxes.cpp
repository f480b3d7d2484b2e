// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "geometry/fields.hpp"
#include "geometry/overlap.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {
namespace {

class BoxesRule final : public LayoutRule {
 public:
  explicit BoxesRule(PlacedBoxMap boxes) : boxes_(std::move(boxes)) {
    for (auto& [rank, list] : boxes_) {
      if (to_int(rank) < 0)
        throw Error(ErrorCode::invalid_argument, fmt::format("boxes layout: rank {}", to_int(rank)));
      ElementCount next = 0;
      for (std::size_t i = 0; i < list.size(); ++i) {
        PlacedBox& placed = list[i];
        check_box(placed.box, rank, i);
        if (placed.box.empty()) placed = back_to_back(placed.box, next);
        check_place(placed, rank, i);
        if (placed != back_to_back(placed.box, next)) back_to_back_ = false;
        next = support::add(next, placed.box.volume(), "the local size of a tensor");
      }
    }
  }

  /// A box in a list of boxes that are stored back to back.
  static PlacedBox back_to_back(const Box& box, ElementCount next) {
    return {box, next, box.empty() ? box.size : row_major_strides(box.size)};
  }

  static void check_box(const Box& box, Rank rank, std::size_t index) {
    if (box.offset.size() != box.size.size()) {
      refuse(rank, index, fmt::format("has {} offsets and {} sizes", box.offset.size(), box.size.size()));
    }
    for (std::size_t dim = 0; dim < box.dims(); ++dim) {
      Extent upper = 0;
      if (box.size[dim] < 0) refuse(rank, index, fmt::format("has size {} in dim {}", box.size[dim], dim));
      if (__builtin_add_overflow(box.offset[dim], box.size[dim], &upper)) {
        refuse(rank, index, fmt::format("ends beyond 64 bits in dim {}", dim));
      }
    }
    static_cast<void>(box.volume());  // refuses volumes that exceed 64 bits
  }

  [[nodiscard]] std::string_view kind() const override { return "boxes"; }

  void check(const Extents& shape, int ranks) const override {
    for (const auto& [rank, list] : boxes_) {
      if (to_int(rank) >= ranks) mismatch(fmt::format("rank {} holds boxes, there are {} ranks", to_int(rank), ranks));
      std::vector<Box> full;  // an empty box may lie anywhere (an unclamped offset of an empty chunk)
      for (const PlacedBox& placed : list) {
        const Box& box = placed.box;
        if (box.dims() != shape.size()) {
          mismatch(fmt::format("box {} of rank {} has {} dims, shape {} has {}", shardwire::to_string(box),
                               to_int(rank), box.dims(), shardwire::to_string(shape), shape.size()));
        }
        if (box.empty()) continue;
        for (std::size_t dim = 0; dim < shape.size(); ++dim) {
          if (box.lower(dim) < 0 || box.upper(dim) > shape[dim]) {
            mismatch(fmt::format("box {} of rank {} leaves shape {} in dim {}", shardwire::to_string(box), to_int(rank),
                                 shardwire::to_string(shape), dim));
          }
        }
        full.push_back(box);
      }
      if (const auto pair = find_overlap(full)) {
        mismatch(fmt::format("boxes {} and {} of rank {} overlap", shardwire::to_string(full[pair->first]),
                             shardwire::to_string(full[pair->second]), to_int(rank)));
      }
    }
  }

  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents&, Rank rank) const override {
    std::vector<PlacedBox> placed;
    const auto found = boxes_.find(rank);
    if (found == boxes_.end()) return placed;
    for (const PlacedBox& one : found->second) {
      if (!one.box.empty()) placed.push_back(one);
    }
    std::stable_sort(placed.begin(), placed.end(),
                     [](const PlacedBox& a, const PlacedBox& b) { return a.local_offset < b.local_offset; });
    return placed;
  }

  [[nodiscard]] ElementCount local_elements(const Extents&, Rank rank) const override {
    ElementCount end = 0;
    const auto found = boxes_.find(rank);
    if (found == boxes_.end()) return end;
    for (const PlacedBox& placed : found->second) {
      if (!placed.box.empty()) end = std::max(end, last_place(placed) + 1);
    }
    return end;
  }

  [[nodiscard]] ElementCount max_boxes(const Extents&) const override {
    std::size_t most = 1;
    for (const auto& [rank, list] : boxes_) most = std::max(most, list.size());
    return static_cast<ElementCount>(most);
  }

  // "boxes" holds, for each box, its number of dims, its offsets, its sizes; "places" holds its local offset and
  // strides, and is omitted if all boxes lie back to back.
  [[nodiscard]] RuleDescription describe() const override {
    std::vector<Extent> ranks;
    std::vector<Extent> counts;
    std::vector<Extent> flat;
    std::vector<Extent> places;
    for (const auto& [rank, list] : boxes_) {
      ranks.push_back(to_int(rank));
      counts.push_back(static_cast<Extent>(list.size()));
      for (const PlacedBox& placed : list) {
        const Box& box = placed.box;
        flat.push_back(static_cast<Extent>(box.dims()));
        flat.insert(flat.end(), box.offset.begin(), box.offset.end());
        flat.insert(flat.end(), box.size.begin(), box.size.end());
        places.push_back(placed.local_offset);
        places.insert(places.end(), placed.local_strides.begin(), placed.local_strides.end());
      }
    }
    RuleDescription description{
        "boxes", {{"ranks", std::move(ranks)}, {"counts", std::move(counts)}, {"boxes", std::move(flat)}}, {}};
    if (!back_to_back_) description.fields.emplace_back("places", std::move(places));
    return description;
  }

  [[nodiscard]] std::string to_string() const override {
    std::size_t count = 0;
    for (const auto& [rank, list] : boxes_) count += list.size();
    return fmt::format("boxes ({} on {} ranks{})", count, boxes_.size(), back_to_back_ ? "" : ", placed");
  }

 private:
  [[noreturn]] static void mismatch(const std::string& why) {
    throw Error(ErrorCode::layout_mismatch, "boxes layout: " + why);
  }

  [[noreturn]] static void refuse(Rank rank, std::size_t index, const std::string& why) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("boxes layout: box {} of rank {} {}", index, to_int(rank), why));
  }

  // Local place of the last element. Requires: the box is not empty.
  static ElementCount last_place(const PlacedBox& placed) {
    ElementCount last = placed.local_offset;
    for (std::size_t dim = 0; dim < placed.box.dims(); ++dim) {
      last = support::add(last, support::multiply(placed.box.size[dim] - 1, placed.local_strides[dim], "a local place"),
                          "a local place");
    }
    return last;
  }

  static void check_place(const PlacedBox& placed, Rank rank, std::size_t index) {
    const std::size_t dims = placed.box.dims();
    if (placed.local_strides.size() != dims) {
      refuse(rank, index, fmt::format("has {} local strides and {} dims", placed.local_strides.size(), dims));
    }
    if (placed.local_offset < 0) refuse(rank, index, fmt::format("has the local offset {}", placed.local_offset));
    std::vector<std::pair<Extent, Extent>> steps;  // stride and size of the dims longer than 1
    for (std::size_t dim = 0; dim < dims; ++dim) {
      const Extent stride = placed.local_strides[dim];
      if (stride < 0) refuse(rank, index, fmt::format("has the local stride {} in dim {}", stride, dim));
      if (placed.box.size[dim] > 1) steps.emplace_back(stride, placed.box.size[dim]);
    }
    if (placed.box.empty()) return;
    static_cast<void>(support::add<ElementCount>(last_place(placed), 1, "a local place"));
    // In ascending order, each stride must exceed the reach of all smaller ones.
    std::sort(steps.begin(), steps.end());
    ElementCount reach = 0;
    for (const auto& [stride, size] : steps) {
      if (stride <= reach) {
        refuse(rank, index,
               fmt::format("has local strides {} for size {}, which put two elements into one place",
                           shardwire::to_string(placed.local_strides), shardwire::to_string(placed.box.size)));
      }
      reach += stride * (size - 1);
    }
  }

  PlacedBoxMap boxes_;
  bool back_to_back_ = true;
};

}  // namespace

Layout Layout::boxes(std::map<Rank, std::vector<Box>> boxes) {
  PlacedBoxMap placed;
  while (!boxes.empty()) {  // free each list once placed: there may be many boxes
    const auto node = boxes.extract(boxes.begin());
    const Rank rank = node.key();
    const std::vector<Box>& list = node.mapped();
    std::vector<PlacedBox>& of_rank = placed[rank];
    of_rank.reserve(list.size());
    ElementCount next = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      BoxesRule::check_box(list[i], rank, i);
      of_rank.push_back(BoxesRule::back_to_back(list[i], next));
      next = support::add(next, list[i].volume(), "the local size of a tensor");
    }
  }
  return Layout::placed(std::move(placed));
}

Layout Layout::placed(PlacedBoxMap boxes) {
  return Layout(std::make_shared<const BoxesRule>(std::move(boxes)));
}

Layout boxes_from(const RuleDescription& description) {
  Fields fields(description);
  const std::vector<Extent>& ranks = fields.list("ranks");
  const std::vector<Extent>& counts = fields.list("counts");
  std::span<const Extent> flat = fields.list("boxes");
  const bool back_to_back = !fields.has("places");
  std::span<const Extent> places = back_to_back ? std::span<const Extent>() : fields.list("places");
  fields.finish();
  const auto require = [](bool holds, const char* why) {
    if (!holds) throw Error(ErrorCode::invalid_argument, std::string("description of a boxes layout: ") + why);
  };
  const auto take = [&](std::span<const Extent>& from, std::size_t count) {
    require(count <= from.size(), "a list ends early");
    const std::span<const Extent> taken = from.first(count);
    from = from.subspan(count);
    return taken;
  };

  require(ranks.size() == counts.size(), "ranks and counts differ in length");
  std::map<Rank, std::vector<Box>> boxes;
  PlacedBoxMap placed;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto [list, fresh] = boxes.try_emplace(Rank{to_int_checked(ranks[i], "rank")});
    require(fresh, "a rank stands twice");
    // A box consumes at least one number of `flat`, so a count beyond its length ends the loop with an error.
    for (Extent box = 0; box < counts[i]; ++box) {
      const Extent number = take(flat, 1)[0];
      require(number >= 0 && number <= static_cast<Extent>(max_dims), "the number of dims is out of bounds");
      const auto dims = static_cast<std::size_t>(number);
      const Extents offset(take(flat, dims));
      const Extents size(take(flat, dims));
      list->second.push_back({offset, size});
      if (back_to_back) continue;
      const Extent local_offset = take(places, 1)[0];
      placed[list->first].push_back({{offset, size}, local_offset, Extents(take(places, dims))});
    }
    if (!back_to_back) placed.try_emplace(list->first);
  }
  require(flat.empty() && places.empty(), "numbers are left over");
  return back_to_back ? Layout::boxes(std::move(boxes)) : Layout::boxes(std::move(placed));
}

}  // namespace shardwire
