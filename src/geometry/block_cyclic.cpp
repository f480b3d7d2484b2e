// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "geometry/fields.hpp"
#include "geometry/intervals.hpp"
#include "geometry/local_array.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {
namespace {

constexpr Extent max_grid_ranks = Extent{1} << 24;

[[noreturn]] void refuse_blocks(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, "blockcyclic layout: " + why);
}

class BlockCyclicRule final : public LayoutRule {
 public:
  BlockCyclicRule(std::vector<Extent> block, std::vector<Extent> grid, std::vector<Extent> source)
      : block_(std::move(block)), grid_(std::move(grid)), source_(std::move(source)) {
    if (source_.empty()) source_.assign(block_.size(), 0);
    if (block_.size() > max_dims)
      refuse_blocks(fmt::format("{} dims; at most {} are supported", block_.size(), max_dims));
    if (grid_.size() != block_.size() || source_.size() != block_.size()) {
      refuse_blocks(fmt::format("{} block sizes, {} grid sizes and {} first owners; one of each per dim is needed",
                                block_.size(), grid_.size(), source_.size()));
    }
    for (std::size_t dim = 0; dim < block_.size(); ++dim) {
      if (block_[dim] < 1) refuse_blocks(fmt::format("block size {} in dim {}", block_[dim], dim));
      if (grid_[dim] < 1) refuse_blocks(fmt::format("grid size {} in dim {}", grid_[dim], dim));
      if (source_[dim] < 0 || source_[dim] >= grid_[dim]) {
        refuse_blocks(fmt::format("first owner {} in dim {}, where the grid has {}", source_[dim], dim, grid_[dim]));
      }
      if (grid_[dim] > max_grid_ranks / count_) refuse_blocks(fmt::format("more than {} ranks", max_grid_ranks));
      count_ *= grid_[dim];
    }
  }

  [[nodiscard]] std::string_view kind() const override { return "blockcyclic"; }

  void check(const Extents& shape, int ranks) const override {
    if (shape.size() != block_.size()) {
      throw Error(ErrorCode::layout_mismatch, fmt::format("{} has {} dims, shape {} has {}", to_string(), block_.size(),
                                                          shardwire::to_string(shape), shape.size()));
    }
    if (count_ > ranks) {
      throw Error(ErrorCode::layout_mismatch,
                  fmt::format("{} needs {} ranks, there are {}", to_string(), count_, ranks));
    }
    if (const ElementCount most = max_boxes(shape); most > max_boxes_per_rank) {
      Extent first = 0;  // owner of block 0, and thus of the largest number of blocks
      for (std::size_t dim = 0; dim < grid_.size(); ++dim) first = first * grid_[dim] + source_[dim];
      throw Error(ErrorCode::layout_mismatch,
                  fmt::format("{} cuts shape {} into {} boxes on rank {}; at most {} are supported, so take larger "
                              "blocks",
                              to_string(), shardwire::to_string(shape), most, first, max_boxes_per_rank));
    }
  }

  [[nodiscard]] ElementCount max_boxes(const Extents& shape) const override {
    ElementCount most = 1;
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return most;
    for (std::size_t dim = 0; dim < std::min(shape.size(), block_.size()); ++dim) {
      if (grid_[dim] == 1) continue;  // all blocks are adjacent
      const Extent blocks = support::ceil_div(shape[dim], block_[dim]);
      most = saturating_product(most, std::max<Extent>(support::ceil_div(blocks, grid_[dim]), 1));
    }
    return most;
  }

  [[nodiscard]] bool has_local_array() const override { return true; }

  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const override {
    Extent position = to_int(rank);
    if (position < 0 || position >= count_) return {};
    // max_boxes() bounds the blocks of a dim only if no other dim is empty.
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return {};
    std::array<Intervals, max_dims> held;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      const Extent coordinate = position % grid_[dim];
      position /= grid_[dim];
      held[dim] = blocks_of(dim, shape[dim], coordinate);
    }
    return product_of(std::span(held.data(), shape.size()));
  }

  bool find(const Extents& shape, const Box& region, OnBox on_box) const override {
    PlacedBox placed{region, 0, region.size};
    find_in(shape, region, 0, 0, placed, on_box);
    return true;
  }

  [[nodiscard]] RuleDescription describe() const override {
    return {"blockcyclic", {{"block", block_}, {"grid", grid_}, {"source", source_}}, {}};
  }

  [[nodiscard]] std::string to_string() const override {
    const bool from_zero = std::all_of(source_.begin(), source_.end(), [](Extent first) { return first == 0; });
    return fmt::format("blockcyclic (block {}, grid {}{})", text_of(block_), text_of(grid_),
                       from_zero ? "" : ", source " + text_of(source_));
  }

 private:
  static std::string text_of(const std::vector<Extent>& numbers) {
    return shardwire::to_string(Extents(std::span<const Extent>(numbers)));
  }

  // Layout maths M10.
  [[nodiscard]] Intervals blocks_of(std::size_t dim, Extent extent, Extent coordinate) const {
    if (extent == 0) return {};
    if (grid_[dim] == 1) return {{0, extent}};
    Intervals held;
    const Extent blocks = support::ceil_div(extent, block_[dim]);
    const Extent first = (coordinate - source_[dim] + grid_[dim]) % grid_[dim];
    for (Extent block = first; block < blocks; block += grid_[dim]) {
      const Extent lower = block * block_[dim];
      held.push_back({lower, lower + std::min(block_[dim], extent - lower)});
    }
    return held;
  }

  // Elements of a dim at one grid coordinate (ScaLAPACK's numroc).
  [[nodiscard]] Extent local_extent(std::size_t dim, Extent extent, Extent coordinate) const {
    if (grid_[dim] == 1) return extent;
    const Extent blocks = support::ceil_div(extent, block_[dim]);
    const Extent first = (coordinate - source_[dim] + grid_[dim]) % grid_[dim];
    if (first >= blocks) return 0;
    const Extent own = support::ceil_div(blocks - first, grid_[dim]);
    const bool last = (blocks - 1 - first) % grid_[dim] == 0;
    return own * block_[dim] - (last ? block_[dim] - (extent - (blocks - 1) * block_[dim]) : 0);
  }

  // Visits every product of one block per dim that meets `region`: dims below `dim` are chosen, `position` is the rank
  // as far as they determine it. local_strides holds the local extents until all are known. False: `on_box` stopped the
  // search.
  bool find_in(const Extents& shape, const Box& region, std::size_t dim, Extent position, PlacedBox& placed,
               OnBox on_box) const {
    if (dim == shape.size()) {
      PlacedBox held{placed.box, 0, row_major_strides(placed.local_strides)};
      for (std::size_t d = 0; d < dim; ++d) {
        const Extent block = placed.box.lower(d) / block_[d];
        const Extent local = grid_[d] == 1 ? 0 : block / grid_[d] * block_[d];
        held.local_offset += local * held.local_strides[d];
      }
      return on_box(held, Rank{static_cast<std::int32_t>(position)});
    }
    const auto choose = [&](Interval interval, Extent coordinate) {
      placed.box.offset[dim] = interval.lower;
      placed.box.size[dim] = interval.size();
      placed.local_strides[dim] = local_extent(dim, shape[dim], coordinate);
      return find_in(shape, region, dim + 1, position * grid_[dim] + coordinate, placed, on_box);
    };
    if (grid_[dim] == 1) return choose({0, shape[dim]}, 0);
    const Extent last = (region.upper(dim) - 1) / block_[dim];
    for (Extent block = region.lower(dim) / block_[dim]; block <= last; ++block) {
      const Extent lower = block * block_[dim];
      const Interval interval{lower, lower + std::min(block_[dim], shape[dim] - lower)};
      if (!choose(interval, (block + source_[dim]) % grid_[dim])) return false;
    }
    return true;
  }

  std::vector<Extent> block_;
  std::vector<Extent> grid_;
  std::vector<Extent> source_;
  Extent count_ = 1;  // ranks of the grid
};

}  // namespace

Layout Layout::block_cyclic(std::vector<Extent> block, std::vector<Extent> grid, std::vector<Extent> source) {
  return Layout(std::make_shared<const BlockCyclicRule>(std::move(block), std::move(grid), std::move(source)));
}

Layout block_cyclic_from(const RuleDescription& description) {
  Fields fields(description);
  const std::vector<Extent>& block = fields.list("block");
  const std::vector<Extent>& grid = fields.list("grid");
  const std::vector<Extent>& source = fields.list("source");
  fields.finish();
  return Layout::block_cyclic(block, grid, source);
}

}  // namespace shardwire
