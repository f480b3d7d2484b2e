// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace shardwire {

/// Accepted connections that have not proven the job key, by the address they come from: strangers can open as many as they
/// like, and one address keeps only so many.
class Unproven {
 public:
  using Id = std::uint64_t;  ///< ascending: the smallest is the oldest
  using Clock = std::chrono::steady_clock;

  explicit Unproven(std::size_t max_per_address) : max_per_address_(max_per_address) {}

  /// Returns the oldest of this address when it has too many now; that one is no longer listed.
  std::optional<Id> add(Id id, const std::string& address);
  /// It has proven the key, or is closed.
  void remove(Id id);
  /// Of all addresses, unless it was added later than that.
  [[nodiscard]] std::optional<Id> oldest(Clock::time_point until) const;

 private:
  std::size_t max_per_address_;
  struct Entry {
    std::string address;
    Clock::time_point since;
  };
  std::map<Id, Entry> entries_;
  std::map<std::string, std::set<Id>> by_address_;
};

}  // namespace shardwire
