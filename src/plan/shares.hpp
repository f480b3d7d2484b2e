// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "plan/layout_search.hpp"

namespace shardwire {

/// A rank and its box.
struct Holder {
  Rank rank{};
  std::uint32_t held = 0;  ///< index into Shares::held
};

/// A part of a wanted box, and its holders, each of which holds all of it.
struct Share {
  Box box;
  std::uint32_t wanted = 0;        ///< index of the wanted box
  std::uint32_t first_holder = 0;  ///< in Shares::holders, by rank, each rank once
  std::uint32_t holders = 0;
  bool one_box = false;  ///< all holders have the same box around it
};

/// The needs of one rank in the tensors of one class: by wanted box, then by offset.
struct Shares {
  std::vector<PlacedBox> wanted;
  std::vector<Share> shares;
  std::vector<Holder> holders;
  std::vector<PlacedBox> held;  ///< a box of several holders is stored once if it has the same local position
  std::vector<Box> gaps;

  [[nodiscard]] std::span<const Holder> holders_of(const Share& share) const {
    return std::span(holders).subspan(share.first_holder, share.holders);
  }
  /// Clears everything except `wanted`.
  void clear_found();
  void clear();
};

/// Splits wanted boxes along the boxes held. Keeps its scratch memory from call to call.
class ShareSplitter {
 public:
  /// Which of the boxes that share elements is taken first: the largest, which makes fewer and longer pieces, or that of
  /// the lowest rank.
  enum class Order : std::uint8_t { by_size, by_rank };

  explicit ShareSplitter(Order order = Order::by_size) : by_(order) {}

  /// Fills `out`, whose `wanted` (disjoint boxes) is given. Boxes of `self` are taken first and whole, so that a rank
  /// never fetches its own data; -1: the target's process holds nothing.
  void split(std::span<LayoutSearch> sources, std::int32_t self, Shares& out);
  /// The same in parts: calls `on_part` after every few thousand shares, until it returns false, and discards them.
  /// Memory thus does not grow with the number of shares, provided that among so many boxes there is a border that none
  /// crosses. A gap across such a border is reported as several gaps.
  void split_in_parts(std::span<LayoutSearch> sources, std::int32_t self, Shares& out,
                      support::FunctionRef<bool()> on_part);

 private:
  struct Group {              // entries with one box
    std::uint32_t first = 0;  // in order_
    std::uint32_t count = 0;
    Box clip;
    std::int32_t first_rank = 0;  // the lowest; with Order::by_rank only
  };

  void search(const Box& region, std::size_t max_boxes);
  [[nodiscard]] std::optional<Extent> border(const Box& region, std::size_t dim);
  bool split(const Box& region, std::vector<Box>& parts);
  template <typename Visit>
  bool each_region(const Box& wanted, Visit visit);
  [[nodiscard]] bool is_disjoint(const Box& region);
  void split_found(std::uint32_t wanted, const Box& region);
  void group_replicas(const Box& wanted);
  void take_whole(const Box& wanted);
  void carve(const Box& wanted);
  template <typename OnPart>
  void take(const Box& clip, OnPart on_part);
  void add(const Box& box, std::span<const std::uint32_t> groups);
  [[nodiscard]] bool is_own(const Group& group) const;
  [[nodiscard]] std::int32_t first_rank_of(const Group& group) const;
  [[nodiscard]] bool is_before(const Group& a, const Group& b) const;

  std::span<LayoutSearch> sources_;
  const Order by_;
  std::int32_t self_ = -1;
  Shares* out_ = nullptr;
  std::uint32_t wanted_ = 0;
  FoundBoxes found_;
  std::uint32_t first_held_ = 0;      // of found_, in out_->held
  std::vector<std::uint32_t> order_;  // found_ by box
  std::vector<Group> groups_;
  std::vector<Box> clips_;  // of groups_
  std::vector<Box> left_;   // of the wanted box
  std::vector<Box> still_;  // scratch of take()
};

}  // namespace shardwire
