// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shardwire/box.hpp"
#include "shardwire/types.hpp"

namespace shardwire {

/// Finds the boxes that share an element with a given one. Empty boxes are never found.
/// Requires: all boxes have the same number of dims.
/// Cost: O(n log n) to build; a query about O(log n + found) for boxes that overlap little among each other.
class OverlapIndex {
 public:
  OverlapIndex() = default;
  explicit OverlapIndex(std::span<const Box> boxes);

  /// Fills `found` with indices into the given boxes, ascending.
  void find(const Box& box, std::vector<std::uint32_t>& found) const;
  /// Some pair of boxes that share an element, if any.
  [[nodiscard]] std::optional<std::pair<std::uint32_t, std::uint32_t>> find_overlap() const;

 private:
  struct Node {
    Box bounds;               // of the whole subtree
    std::uint32_t first = 0;  // leaf: range of entries_
    std::uint32_t count = 0;  // 0: inner node, its left child is the next node
    std::uint32_t right = 0;  // inner node: its right child
  };

  std::uint32_t build(std::span<const Box> boxes, std::uint32_t first, std::uint32_t last);
  template <typename OnHit>
  void visit(const Box& box, OnHit on_hit) const;

  std::vector<Node> nodes_;
  std::vector<std::uint32_t> entries_;  // indices into the given boxes, grouped by leaf
  std::vector<Box> boxes_;              // in the order of entries_
};

/// Some pair among `boxes` that share an element (indices, lower one first), if any.
std::optional<std::pair<std::uint32_t, std::uint32_t>> find_overlap(std::span<const Box> boxes);

/// Whether `parts` (identical ones count once, empty ones do not count) lie in `whole` and hold each of its elements
/// exactly once.
bool covers_exactly(const Box& whole, std::vector<Box> parts);

/// Appends the part of `box` outside `hole` to `out`: at most two boxes per dim, disjoint.
/// Requires: `hole` lies inside `box`.
void subtract(const Box& box, const Box& hole, std::vector<Box>& out);

}  // namespace shardwire
