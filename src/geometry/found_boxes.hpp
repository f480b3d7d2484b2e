// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "geometry/layout_rule.hpp"

namespace shardwire {

/// Boxes found by a search, with the ranks that hold them. Ranks added in sequence for the same box share its entry,
/// and evenly spaced ranks take a few bytes in total: a job may have millions of replicas.
class FoundBoxes {
 public:
  static constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

  /// Returns false and adds nothing if that would exceed the maximum number of entries.
  bool add(const PlacedBox& placed, Rank rank);
  /// Removes all entries. `max_boxes`: maximum number of entries.
  void clear(std::size_t max_boxes = no_limit);

  /// Whether an entry was refused.
  [[nodiscard]] bool full() const { return full_; }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] const PlacedBox& operator[](std::size_t entry) const { return entries_[entry].placed; }

  /// Calls visit(rank) for the ranks of an entry, in the order in which they were added, until it returns false.
  /// Returns false in that case.
  template <typename Visit>
  bool each_rank(std::size_t entry, Visit visit) const {
    const std::size_t end = entry + 1 < entries_.size() ? entries_[entry + 1].first_run : runs_.size();
    for (std::size_t r = entries_[entry].first_run; r < end; ++r) {
      for (std::int32_t i = 0; i < runs_[r].count; ++i) {
        if (!visit(Rank{runs_[r].first + i * runs_[r].step})) return false;
      }
    }
    return true;
  }

 private:
  struct Run {  // ranks first, first + step, ..
    std::int32_t first = 0;
    std::int32_t step = 0;
    std::int32_t count = 0;
  };
  struct Entry {
    PlacedBox placed;
    std::size_t first_run = 0;  // in runs_, up to that of the next entry
  };

  std::size_t max_boxes_ = no_limit;
  bool full_ = false;
  std::vector<Entry> entries_;
  std::vector<Run> runs_;
};

}  // namespace shardwire
