// SPDX-License-Identifier: Apache-2.0
#include "perf/link_bound.hpp"

#include <algorithm>
#include <map>

namespace shardwire::perf {

double link_bound(Planner& planner) {
  std::map<std::vector<Rank>, ByteCount> demand;  // remote bytes by the set of ranks that hold them
  double bound = 0;
  for (int r = 0; r < planner.to().ranks; ++r) {
    const Rank target{r};
    const Plan plan = planner.plan(target);
    ByteCount ingress = 0;
    for (const Piece& piece : plan.pieces) {
      const auto& holders = plan.holder_sets[piece.holders];
      if (std::binary_search(holders.begin(), holders.end(), target)) continue;
      const TensorSpec& spec = plan.wanted->tensors[to_index(piece.tensor)].spec;
      const ByteCount bytes = static_cast<ByteCount>(plan.box(piece).volume()) * item_size(spec.dtype);
      demand[holders] += bytes;
      ingress += bytes;
    }
    bound = std::max(bound, static_cast<double>(ingress));
  }
  std::map<Rank, ByteCount> single;
  std::vector<std::pair<const std::vector<Rank>*, ByteCount>> shared;
  ByteCount all = 0;
  for (const auto& [holders, bytes] : demand) {
    all += bytes;
    if (holders.size() == 1) {
      single[holders.front()] += bytes;
    } else {
      shared.emplace_back(&holders, bytes);
    }
  }
  for (const auto& [rank, bytes] : single) bound = std::max(bound, static_cast<double>(bytes));
  for (const auto& [set, own] : shared) {
    ByteCount sum = 0;
    for (const Rank rank : *set) {
      if (const auto found = single.find(rank); found != single.end()) sum += found->second;
    }
    for (const auto& [other, bytes] : shared) {
      if (std::includes(set->begin(), set->end(), other->begin(), other->end())) sum += bytes;
    }
    bound = std::max(bound, static_cast<double>(sum) / static_cast<double>(set->size()));
  }
  if (planner.from().ranks > 0) bound = std::max(bound, static_cast<double>(all) / planner.from().ranks);
  return bound;
}

}  // namespace shardwire::perf
