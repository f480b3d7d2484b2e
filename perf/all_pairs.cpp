// SPDX-License-Identifier: Apache-2.0
#include "perf/all_pairs.hpp"

#include <algorithm>
#include <map>
#include <string_view>

namespace shardwire::perf {
namespace {

struct Held {
  const TensorLayout* tensor;
  const Section* section;
};

}  // namespace

AllPairsTotals all_pairs(const JobLayout& from, const JobLayout& to, std::optional<Rank> rank) {
  std::map<std::string_view, std::vector<Held>> by_name;
  for (const Section& section : from.sections) {
    std::string_view last;
    for (const TensorLayout& tensor : section.manifest->tensors) {
      if (tensor.spec.key.fqn == last) continue;
      last = tensor.spec.key.fqn;
      by_name[last].push_back({&tensor, &section});
    }
  }
  AllPairsTotals totals;
  for (const Section& section : to.sections) {
    const std::vector<TensorLayout>& tensors = section.manifest->tensors;
    for (std::size_t t = 0; t < tensors.size();) {
      const TensorLayout& wanted = tensors[t];
      ByteCount item_bytes = 0;  // of all states
      for (; t < tensors.size() && tensors[t].spec.key.fqn == wanted.spec.key.fqn; ++t) {
        item_bytes += item_size(tensors[t].spec.dtype);
      }
      std::vector<Box> held;
      for (const Held& source : by_name[wanted.spec.key.fqn]) {
        for (const Rank holder : source.section->ranks) {
          for (const PlacedBox& placed : source.tensor->layout.boxes_of(wanted.spec.shape, holder)) {
            held.push_back(placed.box);
          }
        }
      }
      const auto one_rank = [&](Rank target) {
        for (const PlacedBox& placed : wanted.layout.boxes_of(wanted.spec.shape, target)) {
          const Box* last = nullptr;
          for (const Box& box : held) {
            if (last != nullptr && *last == box) continue;  // replicas follow one another in most layouts
            const auto common = intersect(placed.box, box);
            last = &box;
            if (!common) continue;
            totals.bytes += static_cast<ByteCount>(common->volume()) * item_bytes;
            ++totals.pieces;
          }
        }
      };
      if (!rank) {
        for (const Rank target : section.ranks) one_rank(target);
      } else if (std::binary_search(section.ranks.begin(), section.ranks.end(), *rank)) {
        one_rank(*rank);
      }
    }
  }
  return totals;
}

}  // namespace shardwire::perf
