// SPDX-License-Identifier: Apache-2.0
#include "control/unproven.hpp"

#include <utility>

namespace shardwire {

std::optional<Unproven::Id> Unproven::add(Id id, const std::string& address) {
  entries_.emplace(id, Entry{address, clock_.now()});
  std::set<Id>& same = by_address_[address];
  same.insert(id);
  if (same.size() <= max_per_address_) return std::nullopt;
  const Id oldest = *same.begin();
  remove(oldest);
  return oldest;
}

std::optional<std::string> Unproven::remove(Id id) {
  const auto removed = entries_.extract(id);
  if (removed.empty()) return std::nullopt;
  std::string& address = removed.mapped().address;
  const auto same = by_address_.find(address);
  same->second.erase(id);
  if (same->second.empty()) by_address_.erase(same);
  return std::move(address);
}

std::optional<Unproven::Id> Unproven::oldest(Clock::Time until) const {
  if (entries_.empty() || entries_.begin()->second.since > until) return std::nullopt;
  return entries_.begin()->first;
}

}  // namespace shardwire
