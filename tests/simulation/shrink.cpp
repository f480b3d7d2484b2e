// SPDX-License-Identifier: Apache-2.0
#include "shrink.hpp"

#include <algorithm>
#include <iterator>

namespace shardwire::simulation {

Schedule with_actions(const Schedule& schedule, const std::vector<std::size_t>& kept) {
  Schedule result = schedule;
  result.actions.clear();
  for (const std::size_t index : kept) result.actions.push_back(schedule.actions.at(index));
  return result;
}

std::string kind_of(const std::string& failure) {
  std::string kind;
  for (const char one : failure) {
    if (one == ':') break;
    if (one < '0' || one > '9') kind += one;
  }
  return kind;
}

// Leaves out ever smaller parts, from halves to single actions, until none can go (delta debugging).
std::vector<std::size_t> shrink(const Schedule& schedule, bool whole_job,
                                const std::function<bool(const Schedule&)>& fails) {
  std::vector<std::size_t> always;
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action::Kind kind = schedule.actions[i].kind;
    const bool needed = kind == Action::Kind::join || kind == Action::Kind::publish;
    (whole_job && needed ? always : kept).push_back(i);
  }
  const auto with = [&](const std::vector<std::size_t>& some) {
    std::vector<std::size_t> all;
    std::ranges::merge(always, some, std::back_inserter(all));
    return all;
  };
  for (std::size_t part = std::max<std::size_t>(kept.size() / 2, 1);;) {
    bool any = false;
    for (std::size_t at = 0; at < kept.size();) {
      std::vector<std::size_t> fewer = kept;
      const auto first = fewer.begin() + static_cast<std::ptrdiff_t>(at);
      fewer.erase(first, first + static_cast<std::ptrdiff_t>(std::min(part, kept.size() - at)));
      if (fails(with_actions(schedule, with(fewer)))) {
        kept = std::move(fewer);
        any = true;
      } else {
        at += part;
      }
    }
    if (part == 1 && !any) return with(kept);
    part = std::max<std::size_t>(part / 2, 1);
  }
}

}  // namespace shardwire::simulation
