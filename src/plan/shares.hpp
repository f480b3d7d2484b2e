// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "plan/layout_search.hpp"

namespace shardwire {

/// A part of a wanted box and who holds it whole.
struct Share {
  Box box;
  std::uint32_t wanted = 0;        ///< index of the wanted box
  std::uint32_t first_holder = 0;  ///< in Shares::holders, by rank, each rank once
  std::uint32_t holders = 0;
  bool one_box = false;  ///< all holders have the same box around it
};

/// What one rank needs of the tensors of one class: by wanted box, then by offset.
struct Shares {
  std::vector<PlacedBox> wanted;
  std::vector<Share> shares;
  std::vector<HeldBox> holders;
  std::vector<Box> gaps;

  [[nodiscard]] std::span<const HeldBox> holders_of(const Share& share) const {
    return std::span(holders).subspan(share.first_holder, share.holders);
  }
  void clear();
};

/// Cuts wanted boxes along the boxes held. Keeps its scratch memory from call to call.
class ShareCutter {
 public:
  /// Fills `out`, whose `wanted` (disjoint boxes) is given. What `self` holds is cut out first and whole, so that a rank
  /// never fetches what it has; -1: nothing is held beside the target.
  void cut(std::span<LayoutSearch> sources, std::int32_t self, Shares& out);

 private:
  struct Group {              // holders of one box
    std::uint32_t first = 0;  // in order_
    std::uint32_t count = 0;
    Box clip;
  };

  void cut_one(std::uint32_t wanted);
  void group_replicas(const Box& wanted);
  void take_whole(const Box& wanted);
  void carve(const Box& wanted);
  template <typename OnPart>
  void take(const Box& clip, OnPart on_part);
  void add(const Box& box, std::span<const std::uint32_t> groups);
  [[nodiscard]] bool is_own(const Group& group) const;

  std::span<LayoutSearch> sources_;
  std::int32_t self_ = -1;
  Shares* out_ = nullptr;
  std::uint32_t wanted_ = 0;
  std::vector<HeldBox> found_;
  std::vector<std::uint32_t> order_;  // found_ by box, then by rank
  std::vector<Group> groups_;
  std::vector<Box> clips_;
  std::vector<Box> left_;   // of the wanted box
  std::vector<Box> still_;  // scratch of take()
};

}  // namespace shardwire
