// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <limits>
#include <optional>

#include "geometry/fields.hpp"
#include "geometry/rank_list.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
namespace {

constexpr Extent max_number = std::numeric_limits<std::int32_t>::max();

RankList regular_ranks(Extent first, Extent count, Extent step = 1) {
  if (first < 0 || first > max_number || count < 0 || step < 1 || count > (max_number - first) / step) {
    throw Error(ErrorCode::invalid_argument, fmt::format("a layout on {} ranks from rank {}{}", count, first,
                                                         step == 1 ? "" : fmt::format(" in steps of {}", step)));
  }
  return {first, count, step};
}

class OnRanksRule final : public LayoutRule {
 public:
  OnRanksRule(Layout layout, RankList ranks) : layout_(std::move(layout)), ranks_(std::move(ranks)) {}

  [[nodiscard]] std::string_view kind() const override { return "on_ranks"; }

  void check(const Extents& shape, int ranks) const override {
    if (ranks_.end() > ranks) {
      throw Error(ErrorCode::layout_mismatch,
                  fmt::format("{} needs {} ranks, there are {}", to_string(), ranks_.end(), ranks));
    }
    layout_.check(shape, static_cast<int>(ranks_.size()));
  }

  [[nodiscard]] ElementCount max_boxes(const Extents& shape) const override { return layout_.rule().max_boxes(shape); }
  [[nodiscard]] ElementCount check_cost(const Extents& shape) const override {
    return layout_.rule().check_cost(shape);
  }
  [[nodiscard]] bool has_local_array() const override { return layout_.rule().has_local_array(); }

  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const override {
    const std::optional<Rank> own = own_rank(rank);
    return own ? layout_.boxes_of(shape, *own) : std::vector<PlacedBox>();
  }

  bool find(const Extents& shape, const Box& region, OnBox on_box) const override {
    return layout_.rule().find(shape, region, [&](const PlacedBox& placed, Rank own) {
      return to_int(own) >= ranks_.size() || on_box(placed, ranks_.at(to_int(own)));
    });
  }

  [[nodiscard]] ElementCount local_elements(const Extents& shape, Rank rank) const override {
    const std::optional<Rank> own = own_rank(rank);
    return own ? layout_.local_elements(shape, *own) : 0;
  }

  // Ranks at equal steps are "ranks": the first one, their number, and the step unless it is 1. Others are "listed".
  [[nodiscard]] RuleDescription describe() const override {
    RuleDescription description{"on_ranks", {}, {layout_.rule().describe()}};
    if (!ranks_.regular()) {
      description.fields.push_back({"listed", ranks_.numbers()});
    } else if (ranks_.consecutive()) {
      description.fields.push_back({"ranks", {ranks_.first(), ranks_.size()}});
    } else {
      description.fields.push_back({"ranks", {ranks_.first(), ranks_.size(), ranks_.step()}});
    }
    return description;
  }

  [[nodiscard]] std::string to_string() const override {
    if (!ranks_.regular()) return fmt::format("{} on {} listed ranks", layout_.to_string(), ranks_.size());
    return fmt::format("{} on {} ranks from rank {}{}", layout_.to_string(), ranks_.size(), ranks_.first(),
                       ranks_.step() == 1 ? "" : fmt::format(" in steps of {}", ranks_.step()));
  }

 private:
  // The rank of layout_ whose boxes `rank` holds.
  [[nodiscard]] std::optional<Rank> own_rank(Rank rank) const {
    const Extent position = ranks_.position_of(rank);
    return position < 0 ? std::nullopt : std::optional(Rank{static_cast<std::int32_t>(position)});
  }

  Layout layout_;
  RankList ranks_;  // by rank of layout_
};

}  // namespace

Layout Layout::on_ranks(Layout layout, Rank first, int count) {
  return Layout(std::make_shared<const OnRanksRule>(std::move(layout), regular_ranks(to_int(first), count)));
}

Layout Layout::on_ranks(Layout layout, std::vector<Rank> ranks) {
  return Layout(std::make_shared<const OnRanksRule>(std::move(layout), RankList(std::move(ranks), "on_ranks")));
}

namespace {

RankList listed_ranks_from(const std::vector<Extent>& numbers) {
  std::vector<Rank> ranks;
  ranks.reserve(numbers.size());
  for (const Extent number : numbers) ranks.push_back(Rank{to_int_checked(number, "rank")});
  return {std::move(ranks), "on_ranks"};
}

RankList regular_ranks_from(const std::vector<Extent>& numbers) {
  if (numbers.size() != 2 && numbers.size() != 3) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("description of an on_ranks layout: {} numbers instead of 2 or 3", numbers.size()));
  }
  return regular_ranks(numbers[0], numbers[1], numbers.size() == 3 ? numbers[2] : 1);
}

}  // namespace

Layout on_ranks_from(const RuleDescription& description) {
  Fields fields(description);
  const bool listed = fields.has("listed");
  const std::vector<Extent>& numbers = fields.list(listed ? "listed" : "ranks");
  fields.finish(1);
  RankList ranks = listed ? listed_ranks_from(numbers) : regular_ranks_from(numbers);
  return Layout(std::make_shared<const OnRanksRule>(layout_from(description.inner[0]), std::move(ranks)));
}

}  // namespace shardwire
