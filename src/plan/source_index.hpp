// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "geometry/overlap.hpp"
#include "shardwire/layout.hpp"

namespace shardwire {

/// Ranks that hold a tensor under one layout.
struct Source {
  const Layout* layout = nullptr;
  std::span<const Rank> ranks;
};

/// A part of a wanted box and the boxes that contain it whole (indices into SourceIndex::held).
struct Share {
  Box box;
  std::uint32_t holders = 0;  ///< index into Shares::holder_sets
};

/// What one rank needs of one class of tensors, by wanted box and offset.
struct Shares {
  std::vector<Share> shares;
  std::vector<std::vector<Rank>> holder_sets;
  std::vector<Box> gaps;
};

/// Who holds which boxes of tensors of one shape, searchable.
class SourceIndex {
 public:
  SourceIndex(const Extents& shape, std::vector<Source> sources) : shape_(shape), sources_(std::move(sources)) {}

  /// Cuts each of the boxes `wanted` (disjoint) into shares and gaps. What `self` holds is cut out first and whole, so
  /// that a rank never fetches what it has.
  [[nodiscard]] Shares share_out(std::span<const PlacedBox> wanted, Rank self);

 private:
  struct Known {
    explicit Known(HeldBoxes boxes) : held(std::move(boxes)), tree(held.boxes) {}
    HeldBoxes held;
    OverlapIndex tree;
  };
  class Cutter;

  [[nodiscard]] HeldBoxes collect(const std::optional<Box>& near) const;

  Extents shape_;
  std::vector<Source> sources_;
  int asked_ = 0;
  std::optional<Known> all_;
};

}  // namespace shardwire
