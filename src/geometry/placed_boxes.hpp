// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "geometry/overlap.hpp"
#include "shardwire/layout.hpp"

namespace shardwire {

/// What one rank holds of one tensor: its boxes in local order, with a fast answer to "in which of them does this lie".
/// Requires: the boxes have the same number of dims and do not overlap.
/// Threads: const calls may run from any number of threads.
class PlacedBoxes {
 public:
  PlacedBoxes() = default;
  explicit PlacedBoxes(std::vector<PlacedBox> boxes);

  /// The box that holds all of `piece`; null when none does, when `piece` is empty or has other dims.
  /// Cost: O(log n) box comparisons.
  [[nodiscard]] const PlacedBox* around(const Box& piece) const;
  [[nodiscard]] const std::vector<PlacedBox>& all() const { return boxes_; }

  /// Elements in all boxes.
  [[nodiscard]] ElementCount elements() const;
  /// One past the furthest local element: the local buffer reaches that far, padding in front and between included.
  /// Errors: throws Error{invalid_argument} on overflow.
  [[nodiscard]] ElementCount local_end() const;

 private:
  std::vector<PlacedBox> boxes_;
  OverlapIndex index_;  // only where the boxes are many
};

}  // namespace shardwire
