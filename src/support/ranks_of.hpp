// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "shardwire/types.hpp"

namespace shardwire::support {

/// Numbers of members or ranks in the form that errors carry.
template <typename Numbers>
std::vector<Rank> ranks_of(const Numbers& numbers) {
  std::vector<Rank> ranks;
  for (const int number : numbers) ranks.push_back(Rank{number});
  return ranks;
}

}  // namespace shardwire::support
