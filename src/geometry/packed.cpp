// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <span>

#include "geometry/fields.hpp"
#include "support/checked.hpp"

namespace shardwire {
namespace {

// Strides of a dense array of this shape whose dims have the order that `strides` give them.
Extents dense_strides(const Extents& shape, const Extents& strides) {
  std::array<std::size_t, max_dims> order{};
  const auto dims = std::span(order).first(shape.size());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  std::stable_sort(dims.begin(), dims.end(), [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  Extents dense = strides;
  ElementCount inner = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    dense[dims[i]] = inner;
    inner *= shape[dims[i]];  // no overflow: the volume of a box fits 64 bits
  }
  return dense;
}

class PackedRule final : public LayoutRule {
 public:
  explicit PackedRule(Layout layout) : layout_(std::move(layout)) {}

  [[nodiscard]] std::string_view kind() const override { return "packed"; }
  void check(const Extents& shape, int ranks) const override { layout_.check(shape, ranks); }
  [[nodiscard]] ElementCount max_boxes(const Extents& shape) const override { return layout_.rule().max_boxes(shape); }
  [[nodiscard]] ElementCount check_cost(const Extents& shape) const override {
    return layout_.rule().check_cost(shape);
  }

  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const override {
    std::vector<PlacedBox> boxes = layout_.boxes_of(shape, rank);
    ElementCount next = 0;
    for (PlacedBox& placed : boxes) {
      placed.local_offset = next;
      placed.local_strides = dense_strides(placed.box.size, placed.local_strides);
      next = support::add(next, placed.box.volume(), "the local size of a tensor");
    }
    return boxes;
  }

  // The place of a box depends on the boxes before it, so each rank found is asked for all of them, once.
  bool find(const Extents& shape, const Box& region, OnBox on_box) const override {
    std::set<Rank> seen;
    return layout_.rule().find(shape, region, [&](const PlacedBox&, Rank rank) {
      return !seen.insert(rank).second || show(shape, region, rank, on_box);
    });
  }

  [[nodiscard]] RuleDescription describe() const override { return {"packed", {}, {layout_.rule().describe()}}; }
  [[nodiscard]] std::string to_string() const override { return "packed " + layout_.to_string(); }

 private:
  // False: `on_box` stopped the search.
  bool show(const Extents& shape, const Box& region, Rank rank, OnBox on_box) const {
    for (const PlacedBox& placed : boxes_of(shape, rank)) {
      if (intersect(placed.box, region) && !on_box(placed, rank)) return false;
    }
    return true;
  }

  Layout layout_;
};

}  // namespace

Layout Layout::packed(Layout layout) {
  if (layout.kind() == "packed") return layout;
  return Layout(std::make_shared<const PackedRule>(std::move(layout)));
}

Layout packed_from(const RuleDescription& description) {
  Fields(description).finish(1);
  return Layout::packed(layout_from(description.inner[0]));
}

}  // namespace shardwire
