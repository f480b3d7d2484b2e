// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "geometry/fields.hpp"
#include "geometry/local_array.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
namespace {

constexpr Extent max_outer_ranks = Extent{1} << 24;

class WithinRule final : public LayoutRule {
 public:
  WithinRule(Layout outer, int outer_ranks, Layout inner)
      : outer_(std::move(outer)), outer_ranks_(outer_ranks), inner_(std::move(inner)) {
    if (outer_ranks < 1 || outer_ranks > max_outer_ranks) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a layout within one of {} ranks: 1 to {}", outer_ranks, max_outer_ranks));
    }
    require_local_array(outer_);
  }

  [[nodiscard]] std::string_view kind() const override { return "within"; }

  void check(const Extents& shape, int ranks) const override {
    if (ranks < outer_ranks_) {
      throw Error(ErrorCode::layout_mismatch,
                  fmt::format("{} needs {} ranks, there are {}", to_string(), outer_ranks_, ranks));
    }
    outer_.check(shape, outer_ranks_);
    if (const ElementCount most = max_boxes(shape); most > max_boxes_per_rank) {
      throw Error(ErrorCode::layout_mismatch,
                  fmt::format("{} may cut shape {} into {} boxes on rank 0; at most {} are "
                              "supported",
                              to_string(), shardwire::to_string(shape), most, max_boxes_per_rank));
    }
    std::set<Extents> checked;
    for (int rank = 0; rank < outer_ranks_; ++rank) {
      const Extents array = local_array_of(outer_.boxes_of(shape, Rank{rank}), shape.size());
      if (!checked.insert(array).second) continue;
      try {
        inner_.check(array, ranks / outer_ranks_);
      } catch (const Error& error) {
        throw Error(error.code(),
                    fmt::format("{}, in the part {} that rank {} of {} holds of shape {}", error.what(),
                                shardwire::to_string(array), rank, outer_.to_string(), shardwire::to_string(shape)));
      }
    }
  }

  [[nodiscard]] ElementCount max_boxes(const Extents& shape) const override {
    return saturating_product(outer_.rule().max_boxes(shape), inner_.rule().max_boxes(shape));
  }

  [[nodiscard]] ElementCount check_cost(const Extents& shape) const override {
    const ElementCount one = saturating_sum(outer_.rule().max_boxes(shape), inner_.rule().check_cost(shape));
    return saturating_sum(outer_.rule().check_cost(shape), saturating_product(outer_ranks_, one));
  }

  [[nodiscard]] bool has_local_array() const override { return inner_.rule().has_local_array(); }

  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const override {
    if (to_int(rank) < 0) return {};
    const std::vector<PlacedBox> slice = outer_.boxes_of(shape, Rank{to_int(rank) % outer_ranks_});
    if (slice.empty()) return {};
    const Extents array = local_array_of(slice, shape.size());
    return through(slice, inner_.boxes_of(array, Rank{to_int(rank) / outer_ranks_}));
  }

  bool find(const Extents& shape, const Box& region, OnBox on_box) const override {
    for (const int rank : outer_ranks_with(shape, region)) {
      const std::vector<PlacedBox> slice = outer_.boxes_of(shape, Rank{rank});
      std::vector<Found> found;
      if (!find_in(slice, local_array_of(slice, shape.size()), region, found)) return false;
      for (const Found& inner : found) {
        const Rank holder{to_int(inner.rank) * outer_ranks_ + rank};
        for (const PlacedBox& placed : through(slice, {&inner.placed, 1})) {
          if (intersect(placed.box, region) && !on_box(placed, holder)) return true;
        }
      }
    }
    return true;
  }

  [[nodiscard]] ElementCount local_elements(const Extents& shape, Rank rank) const override {
    if (to_int(rank) < 0) return 0;
    const std::vector<PlacedBox> slice = outer_.boxes_of(shape, Rank{to_int(rank) % outer_ranks_});
    if (slice.empty()) return 0;
    return inner_.local_elements(local_array_of(slice, shape.size()), Rank{to_int(rank) / outer_ranks_});
  }

  [[nodiscard]] RuleDescription describe() const override {
    return {"within", {{"outer_ranks", {outer_ranks_}}}, {outer_.rule().describe(), inner_.rule().describe()}};
  }

  [[nodiscard]] std::string to_string() const override {
    return fmt::format("{} within {} of {} ranks", inner_.to_string(), outer_.to_string(), outer_ranks_);
  }

 private:
  struct Found {  // by the inner layout
    PlacedBox placed;
    Rank rank{};
    [[nodiscard]] auto place() const { return std::pair(rank, placed.local_offset); }
  };

  // The inner ranks' boxes of `region` in the local array of one outer rank, each box once. False: as find().
  [[nodiscard]] bool find_in(const std::vector<PlacedBox>& slice, const Extents& array, const Box& region,
                             std::vector<Found>& found) const {
    const auto keep = [&](const PlacedBox& placed, Rank rank) {
      found.push_back({placed, rank});
      return true;
    };
    for (const PlacedBox& placed : slice) {
      auto part = intersect(placed.box, region);
      if (!part) continue;
      const Box image = image_of(placed);
      for (std::size_t dim = 0; dim < array.size(); ++dim)
        part->offset[dim] += image.lower(dim) - placed.box.lower(dim);
      if (!inner_.rule().find(array, *part, keep)) return false;
    }
    // Several boxes of the slice may have found the same box of the array.
    std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.place() < b.place(); });
    const auto same = [](const Found& a, const Found& b) { return a.place() == b.place(); };
    found.erase(std::unique(found.begin(), found.end(), same), found.end());
    return true;
  }

  // Outer ranks that hold a part of `region`, ascending.
  [[nodiscard]] std::vector<int> outer_ranks_with(const Extents& shape, const Box& region) const {
    std::vector<int> ranks;
    const auto on_box = [&](const PlacedBox&, Rank rank) {
      ranks.push_back(to_int(rank));
      return true;
    };
    if (outer_.rule().find(shape, region, on_box)) {
      std::sort(ranks.begin(), ranks.end());
      ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    } else {
      for (int rank = 0; rank < outer_ranks_; ++rank) ranks.push_back(rank);
    }
    return ranks;
  }

  Layout outer_;
  int outer_ranks_;
  Layout inner_;
};

}  // namespace

Layout Layout::within(Layout outer, int outer_ranks, Layout inner) {
  return Layout(std::make_shared<const WithinRule>(std::move(outer), outer_ranks, std::move(inner)));
}

Layout within_from(const RuleDescription& description) {
  Fields fields(description);
  const Extent outer_ranks = fields.single("outer_ranks", 1, max_outer_ranks);
  fields.finish(2);
  return Layout::within(layout_from(description.inner[0]), static_cast<int>(outer_ranks),
                        layout_from(description.inner[1]));
}

}  // namespace shardwire
