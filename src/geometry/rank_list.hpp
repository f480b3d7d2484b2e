// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "shardwire/types.hpp"

namespace shardwire {

/// The rank at each position 0..size-1 of a layout, each rank once. Ranks at equal steps (a pipeline stage, a group of
/// every eighth rank) are stored as their first one, size and step: manifests stay small, and equal lists compare equal
/// however they were written.
class RankList {
 public:
  /// `first`, `first` + `step`, .. Requires: neither first nor size is negative, step >= 1, all ranks fit 32 bits.
  RankList(Extent first, Extent size, Extent step = 1) : first_(first), size_(size), step_(step) {}
  /// Errors: throws Error{invalid_argument} that names `layout` for a negative or repeated rank.
  RankList(std::vector<Rank> ranks, std::string_view layout);

  [[nodiscard]] Extent size() const { return size_; }
  /// Whether the ranks ascend by equal steps.
  [[nodiscard]] bool regular() const { return ranks_.empty(); }
  [[nodiscard]] bool consecutive() const { return regular() && step_ == 1; }
  /// Of a regular list; the step is 1 for fewer than two ranks.
  [[nodiscard]] Extent first() const { return first_; }
  [[nodiscard]] Extent step() const { return step_; }
  /// One past the highest rank.
  [[nodiscard]] Extent end() const;
  /// Requires: 0 <= position < size().
  [[nodiscard]] Rank at(Extent position) const;
  /// -1 for a rank that is not in the list. Cost: O(log n).
  [[nodiscard]] Extent position_of(Rank rank) const;
  /// All ranks by position.
  [[nodiscard]] std::vector<Extent> numbers() const;

 private:
  Extent first_ = 0;
  Extent size_ = 0;
  Extent step_ = 1;
  std::vector<Rank> ranks_;                         // by position; of a regular list empty
  std::vector<std::pair<Rank, Extent>> positions_;  // the same by rank
};

}  // namespace shardwire
