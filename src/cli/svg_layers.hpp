// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "shardwire/box.hpp"

namespace shardwire::cli {

/// Distributes ranks over layers such that boxes of one layer do not overlap: replicas get a layer each.
struct Layers {
  std::vector<std::size_t> of_rank;  ///< by rank; 0 for a rank without boxes
  std::size_t count = 1;
  bool overlap = false;  ///< boxes are too many and too irregular to separate: some of a layer overlap
};

/// Requires: boxes of one rank do not overlap; ranks are 0 .. ranks-1.
Layers layers_of(const std::vector<std::pair<Box, Rank>>& boxes, int ranks);

}  // namespace shardwire::cli
