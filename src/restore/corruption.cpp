// SPDX-License-Identifier: Apache-2.0
#include "restore/corruption.hpp"

#include <set>

namespace shardwire::restore {

void Corruption::add(std::span<const FoundCorrupt> found) {
  std::set<std::pair<TensorId, Rank>> differ;
  for (const FoundCorrupt& one : found) differ.emplace(one.tensor, one.holder);
  for (const auto& [tensor, rank] : differ) {
    if (++runs_[{tensor, rank}] == max_runs) holders_[tensor].push_back(rank);
  }
}

}  // namespace shardwire::restore
