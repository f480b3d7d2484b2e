// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "geometry/fields.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
namespace {

constexpr Extent max_number = std::numeric_limits<std::int32_t>::max();

class OnRanksRule final : public LayoutRule {
 public:
  OnRanksRule(Layout layout, Rank first, int count) : layout_(std::move(layout)), first_(to_int(first)), count_(count) {
    if (first_ < 0 || count < 0 || count > max_number - first_) {
      throw Error(ErrorCode::invalid_argument, fmt::format("a layout on {} ranks from rank {}", count, first_));
    }
  }

  [[nodiscard]] std::string_view kind() const override { return "on_ranks"; }

  void check(const Extents& shape, int ranks) const override {
    if (count_ > ranks - first_) {
      throw Error(ErrorCode::layout_mismatch,
                  fmt::format("{} needs {} ranks, there are {}", to_string(), first_ + count_, ranks));
    }
    layout_.check(shape, count_);
  }

  [[nodiscard]] ElementCount max_boxes(const Extents& shape) const override { return layout_.rule().max_boxes(shape); }
  [[nodiscard]] ElementCount check_cost(const Extents& shape) const override {
    return layout_.rule().check_cost(shape);
  }
  [[nodiscard]] bool has_local_array() const override { return layout_.rule().has_local_array(); }

  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const override {
    if (!covers(rank)) return {};
    return layout_.boxes_of(shape, Rank{to_int(rank) - first_});
  }

  bool find(const Extents& shape, const Box& region, OnBox on_box) const override {
    return layout_.rule().find(shape, region, [&](const PlacedBox& placed, Rank rank) {
      return to_int(rank) >= count_ || on_box(placed, Rank{to_int(rank) + first_});
    });
  }

  [[nodiscard]] ElementCount local_elements(const Extents& shape, Rank rank) const override {
    return covers(rank) ? layout_.local_elements(shape, Rank{to_int(rank) - first_}) : 0;
  }

  [[nodiscard]] RuleDescription describe() const override {
    return {"on_ranks", {{"ranks", {first_, count_}}}, {layout_.rule().describe()}};
  }

  [[nodiscard]] std::string to_string() const override {
    return fmt::format("{} on {} ranks from rank {}", layout_.to_string(), count_, first_);
  }

 private:
  [[nodiscard]] bool covers(Rank rank) const { return to_int(rank) >= first_ && to_int(rank) - first_ < count_; }

  Layout layout_;
  int first_;
  int count_;
};

}  // namespace

Layout Layout::on_ranks(Layout layout, Rank first, int count) {
  return Layout(std::make_shared<const OnRanksRule>(std::move(layout), first, count));
}

Layout on_ranks_from(const RuleDescription& description) {
  Fields fields(description);
  const std::vector<Extent>& ranks = fields.list("ranks");
  fields.finish(1);
  if (ranks.size() != 2) throw Error(ErrorCode::invalid_argument, "description of an on_ranks layout: two ranks");
  return Layout::on_ranks(layout_from(description.inner[0]), Rank{to_int_checked(ranks[0], "rank")},
                          to_int_checked(ranks[1], "number of ranks"));
}

}  // namespace shardwire
