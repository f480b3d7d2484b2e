// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "geometry/fields.hpp"
#include "geometry/intervals.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {
namespace {

class ChunkRule final : public LayoutRule {
 public:
  ChunkRule(int dim, int ranks) : dim_(dim), ranks_(ranks) {
    if (ranks < 1) throw Error(ErrorCode::invalid_argument, fmt::format("chunk over {} ranks: at least 1", ranks));
  }

  [[nodiscard]] std::string_view kind() const override { return "chunk"; }

  void check(const Extents& shape, int ranks) const override {
    check_dim(dim_, shape, *this);
    if (ranks_ > ranks) {
      throw Error(ErrorCode::layout_mismatch,
                  fmt::format("{} needs {} ranks, there are {}", to_string(), ranks_, ranks));
    }
  }

  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const override {
    if (to_int(rank) < 0 || to_int(rank) >= ranks_) return {};
    const PlacedBox placed = part_of(shape, to_int(rank));
    if (placed.box.empty()) return {};
    return {placed};
  }

  [[nodiscard]] bool has_local_array() const override { return true; }
  bool find(const Extents& shape, const Box& region, OnBox on_box) const override {
    const std::size_t dim = resolve_dim(dim_, shape);
    const Extent step = support::ceil_div(shape[dim], Extent{ranks_});
    const Extent last = (region.upper(dim) - 1) / step;
    for (Extent index = region.lower(dim) / step; index <= last; ++index) {
      if (!on_box(part_of(shape, index), Rank{static_cast<std::int32_t>(index)})) break;
    }
    return true;
  }

  [[nodiscard]] RuleDescription describe() const override {
    return {"chunk", {{"dim", {dim_}}, {"over", {ranks_}}}, {}};
  }

  [[nodiscard]] std::string to_string() const override { return fmt::format("chunk(dim {}, over {})", dim_, ranks_); }

 private:
  [[nodiscard]] PlacedBox part_of(const Extents& shape, Extent index) const {
    const std::size_t dim = resolve_dim(dim_, shape);
    const Interval part = chunk_of(shape[dim], ranks_, index);
    PlacedBox placed{Box::whole(shape), 0, {}};
    placed.box.offset[dim] = part.lower;
    placed.box.size[dim] = part.size();
    if (!placed.box.empty()) placed.local_strides = row_major_strides(placed.box.size);
    return placed;
  }

  int dim_;
  int ranks_;
};

}  // namespace

Layout Layout::chunk(int dim, int ranks) {
  return Layout(std::make_shared<const ChunkRule>(dim, ranks));
}

Layout chunk_from(const RuleDescription& description) {
  Fields fields(description);
  const auto limit = static_cast<Extent>(max_dims);
  const Extent dim = fields.single("dim", -limit, limit - 1);
  const Extent over = fields.single("over", 1, std::numeric_limits<std::int32_t>::max());
  fields.finish();
  return Layout::chunk(static_cast<int>(dim), static_cast<int>(over));
}

}  // namespace shardwire
