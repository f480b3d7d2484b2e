// SPDX-License-Identifier: Apache-2.0
#include "plan/authority.hpp"

#include <algorithm>

#include "geometry/by_value.hpp"

namespace shardwire {

namespace {

bool is_subset(const std::vector<bool>& a, const std::vector<bool>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] && !b[i]) return false;
  }
  return true;
}

}  // namespace

Authority::Authority(const JobLayout& from, const NameClasses& names) : from_(from) {
  for (std::size_t s = 0; s < from.sections.size(); ++s) {
    for (const TensorLayout& tensor : from.sections[s].manifest->tensors) {
      const bool one_element = travels_by_value(tensor.spec);
      auto& alike = (one_element ? one_element_ : tensors_)[names.name_of(tensor.spec.key.fqn)];
      const Alike one(s, layouts_.id_of(tensor.layout), tensor.spec.shape,
                      one_element ? std::string_view(tensor.spec.key.state) : std::string_view());
      if (std::find(alike.begin(), alike.end(), one) == alike.end()) alike.push_back(one);
    }
  }
}

const std::vector<bool>& Authority::of(std::string_view name) {
  static const Ranks everybody;
  if (const auto found = tensors_.find(name); found != tensors_.end()) return remember(found->second, false);
  if (const auto found = one_element_.find(name); found != one_element_.end()) return remember(found->second, true);
  return everybody;
}

const Authority::Ranks& Authority::remember(const std::vector<Alike>& tensors, bool one_element) {
  const auto [entry, fresh] = ranks_.try_emplace(tensors);
  if (fresh) entry->second = one_element ? holders_of_least(tensors) : holders_of_any(tensors);
  return entry->second;
}

void Authority::add_holders(const Alike& alike, Ranks& ranks) const {
  const auto& [section, layout, shape, state] = alike;
  for (const Rank rank : from_.sections[section].ranks) {
    const auto place = static_cast<std::size_t>(to_int(rank));
    if (!ranks[place]) ranks[place] = !layouts_.layout(layout).boxes_of(shape, rank).empty();
  }
}

Authority::Ranks Authority::holders_of_any(const std::vector<Alike>& tensors) const {
  Ranks ranks(static_cast<std::size_t>(from_.ranks));
  for (const Alike& one : tensors) add_holders(one, ranks);
  return ranks;
}

Authority::Ranks Authority::holders_of_least(const std::vector<Alike>& tensors) const {
  std::map<std::string_view, Ranks> by_state;
  for (const Alike& one : tensors) {
    const auto state = by_state.try_emplace(std::get<3>(one), static_cast<std::size_t>(from_.ranks)).first;
    add_holders(one, state->second);
  }
  std::erase_if(by_state, [](const auto& state) {
    return std::find(state.second.begin(), state.second.end(), true) == state.second.end();
  });
  Ranks ranks(static_cast<std::size_t>(from_.ranks));
  for (const auto& [state, holders] : by_state) {
    const bool more_than_another = std::any_of(
        by_state.begin(), by_state.end(),
        [&, &mine = holders](const auto& other) { return other.second != mine && is_subset(other.second, mine); });
    if (more_than_another) continue;
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = ranks[i] || holders[i];
  }
  return ranks;
}

}  // namespace shardwire
