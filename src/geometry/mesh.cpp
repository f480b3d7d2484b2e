// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "geometry/fields.hpp"
#include "geometry/intervals.hpp"
#include "geometry/rank_list.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {
namespace {

// Bounds that keep a hostile description cheap; far above any job.
constexpr std::size_t max_mesh_dims = 32;
constexpr Extent max_mesh_ranks = Extent{1} << 24;
constexpr Extent max_intervals = Extent{1} << 16;  // product of all split factors: maximum boxes per rank

struct Split {  // one sharding placement, in numbers
  int dim = 0;
  Extent factor = 0;  // of a StridedShard; 0 for a plain Shard
};

[[noreturn]] void refuse_mesh(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, "mesh layout: " + why);
}

std::optional<Split> split_of(const Placement& placement) {
  if (const auto* shard = std::get_if<Shard>(&placement)) return Split{shard->dim, 0};
  if (const auto* strided = std::get_if<StridedShard>(&placement)) return Split{strided->dim, strided->split_factor};
  return std::nullopt;
}

std::string text_of(const Placement& placement) {
  const std::optional<Split> split = split_of(placement);
  if (!split) return "R";
  return split->factor == 0 ? fmt::format("S({})", split->dim) : fmt::format("SS({},{})", split->dim, split->factor);
}

class MeshRule final : public LayoutRule {
 public:
  MeshRule(std::vector<Extent> shape, std::vector<Placement> placements, MeshOrder order, std::vector<Rank> ranks,
           Extent first = 0)
      : shape_(std::move(shape)), placements_(std::move(placements)), order_(order) {
    check_parameters();
    ranks_ = RankList(first, count_);
    if (!ranks.empty()) take_ranks(std::move(ranks));
  }

  [[nodiscard]] std::string_view kind() const override { return "mesh"; }

  void check(const Extents& shape, int ranks) const override {
    if (ranks_.end() > ranks) {
      throw Error(ErrorCode::layout_mismatch,
                  fmt::format("{} uses rank {}, there are {} ranks", to_string(), ranks_.end() - 1, ranks));
    }
    Extent shards_after[max_dims];  // product of the sizes of mesh dims further right that split the same tensor dim
    std::fill(std::begin(shards_after), std::end(shards_after), 1);
    for (std::size_t m = shape_.size(); m-- > 0;) {
      const std::optional<Split> split = split_of(placements_[m]);
      if (!split) continue;
      check_dim(split->dim, shape, *this);
      const std::size_t dim = resolve_dim(split->dim, shape);
      if (order_ == MeshOrder::tp_first && split->factor != 0 && split->factor != shards_after[dim]) {
        throw Error(ErrorCode::layout_mismatch,
                    fmt::format("{}: mesh dim {} has split factor {}, but later mesh dims cut dim {} into {}",
                                to_string(), m, split->factor, dim, shards_after[dim]));
      }
      shards_after[dim] *= shape_[m];  // at most max_mesh_ranks
    }
  }

  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const override {
    Extent position = ranks_.position_of(rank);
    if (position < 0) return {};
    std::array<Extent, max_mesh_dims> at{};
    for (std::size_t m = shape_.size(); m-- > 0;) {
      at[m] = position % shape_[m];
      position /= shape_[m];
    }
    std::array<Intervals, max_dims> held;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (shape[dim] > 0) held[dim] = {{0, shape[dim]}};
    }
    for (const std::size_t m : split_order_) {
      const std::optional<Split> split = split_of(placements_[m]);
      if (!split) continue;
      Intervals& of_dim = held[resolve_dim(split->dim, shape)];
      of_dim = shard(of_dim, factor_of(*split), shape_[m], at[m]);
    }
    return product_of(std::span(held.data(), shape.size()));
  }

  [[nodiscard]] bool has_local_array() const override { return true; }
  [[nodiscard]] ElementCount max_boxes(const Extents&) const override { return factors_; }
  bool find(const Extents& shape, const Box& region, OnBox on_box) const override {
    Search search{shape, region, {}, {}, on_box};
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (shape[dim] > 0) search.held[dim] = {{0, shape[dim]}};
    }
    descend(search, 0);
    return true;
  }

  [[nodiscard]] RuleDescription describe() const override {
    std::vector<Extent> placements;
    for (const Placement& placement : placements_) {
      const std::optional<Split> split = split_of(placement);
      placements.push_back(static_cast<Extent>(placement.index()));
      placements.push_back(split ? split->dim : 0);
      placements.push_back(split ? split->factor : 0);
    }
    RuleDescription description{
        "mesh", {{"shape", shape_}, {"placements", placements}, {"tp_first", {order_ == MeshOrder::tp_first}}}, {}};
    if (ranks_.consecutive()) {
      description.fields.push_back({"first", {ranks_.first()}});
    } else {
      description.fields.push_back({"ranks", ranks_.numbers()});
    }
    return description;
  }

  [[nodiscard]] std::string to_string() const override {
    std::string shape;
    std::string placements;
    for (std::size_t m = 0; m < shape_.size(); ++m) {
      const char* comma = m == 0 ? "" : ", ";
      shape += fmt::format("{}{}", comma, shape_[m]);
      placements += fmt::format("{}{}", comma, text_of(placements_[m]));
    }
    const char* order = order_ == MeshOrder::tp_first ? " tp_first" : "";
    const std::string ranks = !ranks_.consecutive() ? " on listed ranks"
                              : ranks_.first() == 0 ? ""
                                                    : fmt::format(" from rank {}", ranks_.first());
    return fmt::format("mesh ({}) [{}]{}{}", shape, placements, order, ranks);
  }

 private:
  void check_parameters() {
    if (shape_.empty() || shape_.size() > max_mesh_dims) refuse_mesh(fmt::format("{} mesh dims", shape_.size()));
    if (placements_.size() != shape_.size()) {
      refuse_mesh(fmt::format("{} placements for {} mesh dims", placements_.size(), shape_.size()));
    }
    for (std::size_t m = 0; m < shape_.size(); ++m) {
      if (shape_[m] < 1) refuse_mesh(fmt::format("mesh dim {} has size {}", m, shape_[m]));
      if (shape_[m] > max_mesh_ranks / count_) refuse_mesh(fmt::format("more than {} positions", max_mesh_ranks));
      count_ *= shape_[m];
      const auto* strided = std::get_if<StridedShard>(&placements_[m]);
      if (strided == nullptr) continue;
      if (strided->split_factor < 1)
        refuse_mesh(fmt::format("mesh dim {} has split factor {}", m, strided->split_factor));
      if (strided->split_factor > max_intervals / factors_) {
        refuse_mesh(fmt::format("mesh dim {} has split factor {}: all together at most {}", m, strided->split_factor,
                                max_intervals));
      }
      factors_ *= strided->split_factor;
    }
    order_splits();
  }

  void order_splits() {
    if (order_ == MeshOrder::mesh) {
      for (std::size_t m = 0; m < shape_.size(); ++m) split_order_.push_back(m);
      return;
    }
    // Plain shards left to right, then the strided ones from the innermost outwards: a split factor counts the splits
    // of all mesh dims further right, so those are made first.
    for (std::size_t m = 0; m < shape_.size(); ++m) {
      if (!std::holds_alternative<StridedShard>(placements_[m])) split_order_.push_back(m);
    }
    for (std::size_t m = shape_.size(); m-- > 0;) {
      if (std::holds_alternative<StridedShard>(placements_[m])) split_order_.push_back(m);
    }
  }

  // In tp_first order a strided shard is a plain shard that is applied late.
  [[nodiscard]] Extent factor_of(const Split& split) const { return order_ == MeshOrder::mesh ? split.factor : 0; }

  void take_ranks(std::vector<Rank> ranks) {
    if (static_cast<Extent>(ranks.size()) != count_)
      refuse_mesh(fmt::format("{} ranks for {} positions", ranks.size(), count_));
    ranks_ = RankList(std::move(ranks), "mesh");
  }

  // Walks the mesh as a tree, one level per splitting dim, and leaves a branch as soon as it holds nothing of the
  // region.
  // False: `on_box` stopped the search.
  struct Search {
    const Extents& shape;
    const Box& region;
    std::array<Intervals, max_dims> held;
    std::array<Extent, max_mesh_dims> at;
    OnBox on_box;
  };

  bool descend(Search& search, std::size_t level) const {
    if (level == split_order_.size()) return arrive(search);
    const std::size_t m = split_order_[level];
    const std::optional<Split> split = split_of(placements_[m]);
    if (!split) return descend(search, level + 1);
    Extent& at = search.at[m];
    const std::size_t dim = resolve_dim(split->dim, search.shape);
    const Interval wanted{search.region.lower(dim), search.region.upper(dim)};
    const Intervals whole = search.held[dim];
    Extent last = shape_[m] - 1;
    at = 0;
    if (whole.size() == 1 && factor_of(*split) == 0) {  // one interval, split evenly: the ranks follow by division
      const Extent step = support::ceil_div(whole[0].size(), shape_[m]);
      at = std::max(wanted.lower - whole[0].lower, Extent{0}) / step;
      last = std::min(last, (std::min(wanted.upper, whole[0].upper) - 1 - whole[0].lower) / step);
    }
    bool more = true;
    for (; at <= last && more; ++at) {
      search.held[dim] = shard(whole, factor_of(*split), shape_[m], at);
      if (meets(search.held[dim], wanted)) more = descend(search, level + 1);
    }
    search.held[dim] = whole;
    return more;
  }

  bool arrive(Search& search) const {
    for (const PlacedBox& placed : product_of(std::span(search.held.data(), search.shape.size()))) {
      if (intersect(placed.box, search.region) && !show_replicas(search, placed, 0, 0)) return false;
    }
    return true;
  }

  bool show_replicas(Search& search, const PlacedBox& placed, std::size_t m, Extent position) const {
    if (m == shape_.size()) return search.on_box(placed, ranks_.at(position));
    const bool replicated = !split_of(placements_[m]);
    const Extent first = replicated ? 0 : search.at[m];
    const Extent last = replicated ? shape_[m] - 1 : first;
    for (Extent at = first; at <= last; ++at) {
      if (!show_replicas(search, placed, m + 1, position * shape_[m] + at)) return false;
    }
    return true;
  }

  static bool meets(const Intervals& held, const Interval& wanted) {
    return std::any_of(held.begin(), held.end(),
                       [&](const Interval& one) { return one.lower < wanted.upper && wanted.lower < one.upper; });
  }

  // Shard (factor 0), and StridedShard: each of `factor` parts is split by itself.
  static Intervals shard(const Intervals& held, Extent factor, Extent parts, Extent index) {
    const Extent extent = total_of(held);
    Intervals out;
    if (factor == 0) {
      append_slice(held, chunk_of(extent, parts, index), out);
      return out;
    }
    for (Extent j = 0; j < factor; ++j) {
      const Interval piece = chunk_of(extent, factor, j);
      if (piece.size() == 0) break;  // all further pieces are empty too
      const Interval part = chunk_of(piece.size(), parts, index);
      append_slice(held, {piece.lower + part.lower, piece.lower + part.upper}, out);
    }
    return out;
  }

  std::vector<Extent> shape_;
  std::vector<Placement> placements_;
  MeshOrder order_;
  Extent count_ = 1;                      // number of positions
  Extent factors_ = 1;                    // product of all split factors
  RankList ranks_{0, 0};                  // by position
  std::vector<std::size_t> split_order_;  // mesh dims in the order in which they split
};

}  // namespace

Layout Layout::mesh(std::vector<Extent> shape, std::vector<Placement> placements, MeshOrder order,
                    std::vector<Rank> ranks) {
  return Layout(std::make_shared<const MeshRule>(std::move(shape), std::move(placements), order, std::move(ranks)));
}

Layout mesh_from(const RuleDescription& description) {
  Fields fields(description);
  const std::vector<Extent>& shape = fields.list("shape");
  const std::vector<Extent>& flat = fields.list("placements");
  const bool tp_first = fields.single("tp_first", 0, 1) != 0;
  if (flat.size() % 3 != 0 || flat.size() > 3 * max_mesh_dims) refuse_mesh("placements are not triples");
  std::vector<Placement> placements;
  for (std::size_t i = 0; i < flat.size(); i += 3) {
    const int dim = to_int_checked(flat[i + 1], "placement dim");
    switch (flat[i]) {
      case 0: placements.emplace_back(Replicate{}); break;
      case 1: placements.emplace_back(Shard{dim}); break;
      case 2: placements.emplace_back(StridedShard{dim, flat[i + 2]}); break;
      default: refuse_mesh(fmt::format("placement {} is unknown", flat[i]));
    }
  }
  std::vector<Rank> ranks;
  if (fields.has("ranks")) {
    const std::vector<Extent>& listed = fields.list("ranks");
    if (listed.empty()) refuse_mesh("no ranks");
    for (const Extent rank : listed) ranks.push_back(Rank{to_int_checked(rank, "rank")});
    fields.finish();
  } else {
    const Extent first = fields.single("first", 0, std::numeric_limits<std::int32_t>::max() - max_mesh_ranks);
    fields.finish();
    const MeshOrder order = tp_first ? MeshOrder::tp_first : MeshOrder::mesh;
    return Layout(std::make_shared<const MeshRule>(shape, std::move(placements), order, std::move(ranks), first));
  }
  return Layout::mesh(shape, std::move(placements), tp_first ? MeshOrder::tp_first : MeshOrder::mesh, std::move(ranks));
}

}  // namespace shardwire
