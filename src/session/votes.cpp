// SPDX-License-Identifier: Apache-2.0
#include "session/votes.hpp"

#include <algorithm>

namespace shardwire {

Votes::Votes(const JobLayout& from, const NameClasses& names) : from_(from) {
  for (std::size_t s = 0; s < from.sections.size(); ++s) {
    for (const TensorLayout& tensor : from.sections[s].manifest->tensors) {
      if (volume_of(tensor.spec.shape) == 1) continue;  // travels by value itself
      auto& alike = tensors_[names.name_of(tensor.spec.key.fqn)];
      const Alike one(s, layouts_.id_of(tensor.layout), tensor.spec.shape);
      if (std::find(alike.begin(), alike.end(), one) == alike.end()) alike.push_back(one);
    }
  }
}

const std::vector<bool>& Votes::of(std::string_view name) {
  static const std::vector<bool> everybody;
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return everybody;
  const auto [entry, fresh] = votes_.try_emplace(found->second);
  if (!fresh) return entry->second;
  std::vector<bool>& votes = entry->second;
  votes.resize(static_cast<std::size_t>(from_.ranks));
  for (const auto& [section, layout, shape] : found->second) {
    for (const Rank rank : from_.sections[section].ranks) {
      const auto place = static_cast<std::size_t>(to_int(rank));
      if (!votes[place]) votes[place] = !layouts_.layout(layout).boxes_of(shape, rank).empty();
    }
  }
  return votes;
}

}  // namespace shardwire
