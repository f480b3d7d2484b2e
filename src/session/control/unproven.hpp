// SPDX-License-Identifier: Apache-2.0
#pragma once

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

  explicit Unproven(std::size_t max_per_address) : max_per_address_(max_per_address) {}

  /// Returns the oldest of this address when it has too many now; that one is no longer listed.
  std::optional<Id> add(Id id, const std::string& address);
  /// It has proven the key, or is closed.
  void remove(Id id);
  /// Of all addresses.
  [[nodiscard]] std::optional<Id> oldest() const;

 private:
  std::size_t max_per_address_;
  std::map<Id, std::string> addresses_;
  std::map<std::string, std::set<Id>> by_address_;
};

}  // namespace shardwire
