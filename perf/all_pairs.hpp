// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "shardwire/plan.hpp"

namespace shardwire::perf {

struct AllPairsTotals {
  ByteCount bytes = 0;  ///< wanted bytes that someone holds; exact where nothing is held twice
  std::size_t pieces = 0;
};

/// The simple way to plan, for comparison: each tensor on its own (its states together), each wanted box against the box
/// of every source rank. Holders of one box count once. All ranks, or one.
AllPairsTotals all_pairs(const JobLayout& from, const JobLayout& to, std::optional<Rank> rank = {});

}  // namespace shardwire::perf
