// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "geometry/overlap.hpp"
#include "shardwire/layout.hpp"

namespace shardwire {

/// A rank's part of one tensor: its boxes in local order, with a fast search for the box that contains a piece.
/// Requires: the boxes have the same number of dims and are disjoint.
/// Threads: const calls may run from any number of threads.
class PlacedBoxes {
 public:
  PlacedBoxes() = default;
  explicit PlacedBoxes(std::vector<PlacedBox> boxes);

  /// The box that contains all of `piece`; null if none does, or if `piece` is empty or has another number of dims.
  /// Cost: O(log n) box comparisons.
  [[nodiscard]] const PlacedBox* around(const Box& piece) const;
  [[nodiscard]] const std::vector<PlacedBox>& all() const { return boxes_; }

  /// Elements in all boxes.
  [[nodiscard]] ElementCount elements() const;
  /// One past the furthest local element: the size of the local buffer, including padding in front and between.
  /// Errors: throws Error{invalid_argument} on overflow.
  [[nodiscard]] ElementCount local_end() const;

 private:
  std::vector<PlacedBox> boxes_;
  OverlapIndex index_;  // used only for many boxes
};

}  // namespace shardwire
