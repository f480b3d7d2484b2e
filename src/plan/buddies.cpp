// SPDX-License-Identifier: Apache-2.0
#include "plan/buddies.hpp"

#include <algorithm>
#include <map>

namespace shardwire {

Buddies buddies_of(std::span<const std::int32_t> domains, int copies) {
  std::map<std::int32_t, std::size_t> numbers;  // in the order of lowest ranks
  std::vector<std::vector<Rank>> members;       // by number
  std::vector<std::size_t> place(domains.size());
  for (std::size_t rank = 0; rank < domains.size(); ++rank) {
    const auto [known, is_new] = numbers.try_emplace(domains[rank], members.size());
    if (is_new) members.emplace_back();
    place[rank] = members[known->second].size();
    members[known->second].push_back(Rank{static_cast<int>(rank)});
  }
  Buddies buddies{std::vector<std::vector<Rank>>(domains.size()), static_cast<int>(members.size())};
  const auto others = static_cast<std::size_t>(std::clamp(copies, 0, std::max(0, buddies.domains - 1)));
  for (std::size_t rank = 0; rank < domains.size(); ++rank) {
    const std::size_t own = numbers.at(domains[rank]);
    for (std::size_t next = 1; next <= others; ++next) {
      const std::vector<Rank>& there = members[(own + next) % members.size()];
      buddies.of[rank].push_back(there[place[rank] % there.size()]);
    }
  }
  return buddies;
}

}  // namespace shardwire
