// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "geometry/fields.hpp"
#include "geometry/overlap.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {
namespace {

class BoxesRule final : public LayoutRule {
 public:
  explicit BoxesRule(std::map<Rank, std::vector<Box>> boxes) : boxes_(std::move(boxes)) {
    for (const auto& [rank, list] : boxes_) {
      if (to_int(rank) < 0)
        throw Error(ErrorCode::invalid_argument, fmt::format("boxes layout: rank {}", to_int(rank)));
      for (std::size_t i = 0; i < list.size(); ++i) check_box(list[i], rank, i);
    }
  }

  [[nodiscard]] std::string_view kind() const override { return "boxes"; }

  void check(const Extents& shape, int ranks) const override {
    for (const auto& [rank, list] : boxes_) {
      if (to_int(rank) >= ranks) mismatch(fmt::format("rank {} holds boxes, there are {} ranks", to_int(rank), ranks));
      std::vector<Box> full;  // an empty box may lie anywhere (an unclamped offset of an empty chunk)
      for (const Box& box : list) {
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
    ElementCount local = 0;
    for (const Box& box : found->second) {
      if (box.empty()) continue;
      placed.push_back({box, local, row_major_strides(box.size)});
      local = support::add(local, box.volume(), "the local size of a tensor");
    }
    return placed;
  }

  // "boxes" holds, for each box, its number of dims, its offsets, its sizes.
  [[nodiscard]] RuleDescription describe() const override {
    std::vector<Extent> ranks;
    std::vector<Extent> counts;
    std::vector<Extent> flat;
    for (const auto& [rank, list] : boxes_) {
      ranks.push_back(to_int(rank));
      counts.push_back(static_cast<Extent>(list.size()));
      for (const Box& box : list) {
        flat.push_back(static_cast<Extent>(box.dims()));
        flat.insert(flat.end(), box.offset.begin(), box.offset.end());
        flat.insert(flat.end(), box.size.begin(), box.size.end());
      }
    }
    return {"boxes", {{"ranks", std::move(ranks)}, {"counts", std::move(counts)}, {"boxes", std::move(flat)}}, {}};
  }

  [[nodiscard]] std::string to_string() const override {
    std::size_t count = 0;
    for (const auto& [rank, list] : boxes_) count += list.size();
    return fmt::format("boxes ({} on {} ranks)", count, boxes_.size());
  }

 private:
  [[noreturn]] static void mismatch(const std::string& why) {
    throw Error(ErrorCode::layout_mismatch, "boxes layout: " + why);
  }

  static void check_box(const Box& box, Rank rank, std::size_t index) {
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("boxes layout: box {} of rank {} {}", index, to_int(rank), why));
    };
    if (box.offset.size() != box.size.size()) {
      refuse(fmt::format("has {} offsets and {} sizes", box.offset.size(), box.size.size()));
    }
    for (std::size_t dim = 0; dim < box.dims(); ++dim) {
      Extent upper = 0;
      if (box.size[dim] < 0) refuse(fmt::format("has size {} in dim {}", box.size[dim], dim));
      if (__builtin_add_overflow(box.offset[dim], box.size[dim], &upper)) {
        refuse(fmt::format("ends beyond 64 bits in dim {}", dim));
      }
    }
    static_cast<void>(box.volume());  // refuses what leaves 64 bits
  }

  std::map<Rank, std::vector<Box>> boxes_;
};

}  // namespace

Layout Layout::boxes(std::map<Rank, std::vector<Box>> boxes) {
  return Layout(std::make_shared<const BoxesRule>(std::move(boxes)));
}

Layout boxes_from(const RuleDescription& description) {
  Fields fields(description);
  const std::vector<Extent>& ranks = fields.list("ranks");
  const std::vector<Extent>& counts = fields.list("counts");
  std::span<const Extent> flat = fields.list("boxes");
  fields.finish();
  const auto require = [](bool holds, const char* why) {
    if (!holds) throw Error(ErrorCode::invalid_argument, std::string("description of a boxes layout: ") + why);
  };
  const auto take = [&](std::size_t count) {
    require(count <= flat.size(), "the list of boxes ends early");
    const std::span<const Extent> taken = flat.first(count);
    flat = flat.subspan(count);
    return taken;
  };

  require(ranks.size() == counts.size(), "ranks and counts differ in length");
  std::map<Rank, std::vector<Box>> boxes;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto [list, fresh] = boxes.try_emplace(Rank{to_int_checked(ranks[i], "rank")});
    require(fresh, "a rank stands twice");
    // A box takes at least one number of `flat`, so a count beyond its length ends the loop with an error.
    for (Extent box = 0; box < counts[i]; ++box) {
      const Extent dims = take(1)[0];
      require(dims >= 0 && dims <= static_cast<Extent>(max_dims), "the number of dims is out of bounds");
      const Extents offset(take(static_cast<std::size_t>(dims)));
      const Extents size(take(static_cast<std::size_t>(dims)));
      list->second.push_back({offset, size});
    }
  }
  require(flat.empty(), "numbers are left over");
  return Layout::boxes(std::move(boxes));
}

}  // namespace shardwire
