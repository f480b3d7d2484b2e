// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shardwire/types.hpp"

namespace shardwire {

/// The holders of copies of each rank. No rank shares a failure domain with a copy of it.
struct Buddies {
  std::vector<std::vector<Rank>> of;  ///< by rank: who holds its copies, each in another domain
  int domains = 0;
};

/// The copies of a domain's ranks go to the next domains, in the order of their lowest ranks, and to the ranks of each in turn.
/// All domains are equally loaded if they have equally many ranks. With too few domains there are fewer copies.
/// `domains`: of each rank, as arbitrary numbers. `copies`: of each rank, at least 0. Pure.
Buddies buddies_of(std::span<const std::int32_t> domains, int copies);

}  // namespace shardwire
