// SPDX-License-Identifier: Apache-2.0
#include "geometry/found_boxes.hpp"

namespace shardwire {

bool FoundBoxes::add(const PlacedBox& placed, Rank rank) {
  if (entries_.empty() || entries_.back().placed != placed) {
    full_ = full_ || entries_.size() >= max_boxes_;
    if (full_) return false;
    entries_.push_back({placed, runs_.size()});
  } else {
    Run& last = runs_.back();
    if (last.count == 1) last.step = to_int(rank) - last.first;
    if (to_int(rank) == last.first + std::int64_t{last.step} * last.count) {
      ++last.count;
      return true;
    }
  }
  runs_.push_back({to_int(rank), 0, 1});
  return true;
}

void FoundBoxes::clear(std::size_t max_boxes) {
  max_boxes_ = max_boxes;
  full_ = false;
  entries_.clear();
  runs_.clear();
}

}  // namespace shardwire
