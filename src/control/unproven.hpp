// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "runtime/clock.hpp"

namespace shardwire {

/// Accepted connections that have not proven the job key, by their source address. Any process can open connections
/// without limit, so each address may keep only a few.
class Unproven {
 public:
  using Id = std::uint64_t;  ///< ascending: the smallest is the oldest

  Unproven(const Clock& clock, std::size_t max_per_address) : clock_(clock), max_per_address_(max_per_address) {}

  /// Returns the oldest connection of this address if it has too many; that one is no longer listed.
  std::optional<Id> add(Id id, const std::string& address);
  /// Removes a connection that has proven the key or is closed. Returns its address, if it was listed.
  std::optional<std::string> remove(Id id);
  /// The oldest of all addresses, unless it was added after `until`.
  [[nodiscard]] std::optional<Id> oldest(Clock::Time until) const;

 private:
  const Clock& clock_;
  std::size_t max_per_address_;
  struct Entry {
    std::string address;
    Clock::Time since;
  };
  std::map<Id, Entry> entries_;
  std::map<std::string, std::set<Id>> by_address_;
};

}  // namespace shardwire
