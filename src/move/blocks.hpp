// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "geometry/overlap.hpp"
#include "geometry/placed_boxes.hpp"
#include "shardwire/types.hpp"

namespace shardwire::move {

/// The blocks in which a source digests its part of one tensor: each of its boxes, cut in row-major order, the last block of a
/// box shorter. A pure function of the layout, so that source and reader agree on them.
/// Threads: const calls may run from any number of threads.
class Blocks {
 public:
  static constexpr ByteCount max_bytes = 1u << 20;  ///< of a block

  Blocks() = default;
  Blocks(std::span<const PlacedBox> held, ByteCount item_bytes);

  [[nodiscard]] std::size_t size() const { return boxes_.size(); }
  [[nodiscard]] const Box& operator[](std::size_t block) const { return boxes_[block]; }
  /// The box of the source that contains this block.
  [[nodiscard]] const PlacedBox& held(std::size_t block) const { return held_[of_[block]]; }
  /// Fills `found` with the blocks that share an element with `box`, ascending.
  void touching(const Box& box, std::vector<std::uint32_t>& found) const { index_.find(box, found); }

 private:
  std::vector<PlacedBox> held_;
  std::vector<Box> boxes_;
  std::vector<std::uint32_t> of_;  // by block: index into held_
  OverlapIndex index_;
};

}  // namespace shardwire::move
