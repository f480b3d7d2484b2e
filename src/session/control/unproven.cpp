// SPDX-License-Identifier: Apache-2.0
#include "session/control/unproven.hpp"

namespace shardwire {

std::optional<Unproven::Id> Unproven::add(Id id, const std::string& address) {
  addresses_.emplace(id, address);
  std::set<Id>& same = by_address_[address];
  same.insert(id);
  if (same.size() <= max_per_address_) return std::nullopt;
  const Id oldest = *same.begin();
  remove(oldest);
  return oldest;
}

void Unproven::remove(Id id) {
  const auto found = addresses_.find(id);
  if (found == addresses_.end()) return;
  const auto same = by_address_.find(found->second);
  same->second.erase(id);
  if (same->second.empty()) by_address_.erase(same);
  addresses_.erase(found);
}

std::optional<Unproven::Id> Unproven::oldest() const {
  if (addresses_.empty()) return std::nullopt;
  return addresses_.begin()->first;
}

}  // namespace shardwire
