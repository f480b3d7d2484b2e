// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shardwire/plan.hpp"

namespace shardwire {

/// The holders of a plan's elements, apart from the lowest holder of each piece, from which Replicas::compare reads it.
/// Includes ranks that hold a part of a piece, and the target's own process.
class OtherHolders {
 public:
  struct Part {
    std::uint32_t piece = 0;   ///< index into Plan::pieces
    std::uint32_t region = 0;  ///< see box(): the elements of the piece that the rank holds in one box
    TensorId held{};           ///< in the rank's manifest
  };
  struct OfRank {
    Rank rank{};
    std::uint32_t section = 0;  ///< in the `from` side
    std::vector<Part> parts;    ///< by piece
  };

  OtherHolders() = default;
  /// Requires: `plan` is of this planner, which has Replicas::first or Replicas::compare.
  /// Cost: O(pieces of the plan, times their holders).
  OtherHolders(Planner& planner, const Plan& plan);

  /// By rank.
  [[nodiscard]] std::span<const OfRank> ranks() const { return ranks_; }
  [[nodiscard]] const Box& box(const Part& part) const { return regions_[part.region]; }

 private:
  struct Found;
  void find(Planner::State& state, std::uint32_t of_class, const Plan& plan, std::uint32_t first, std::uint32_t end,
            std::vector<Found>& found);

  std::vector<OfRank> ranks_;
  std::vector<Box> regions_;  // tensors that are split alike share them
};

}  // namespace shardwire
