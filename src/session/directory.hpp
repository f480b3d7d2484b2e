// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "wire/messages.hpp"

namespace shardwire {

/// What this member knows of the others, from the store's entries. What it has learnt it keeps.
/// Threads: loop thread only.
class Directory {
 public:
  enum class Departure : std::uint8_t { left, lost };

  /// Errors: throws Error{transport_failed} for an entry that cannot be read.
  void apply(const wire::StoreEntry& entry);

  [[nodiscard]] const wire::MemberRecord* member(int rank) const;
  /// Set once the present incarnation of a member has gone.
  [[nodiscard]] std::optional<Departure> departed(int rank) const;
  /// Live publications under `name`, by member; those of departed members left out.
  [[nodiscard]] std::vector<wire::PublicationRecord> publications(const std::string& name) const;
  /// Values that came for a gather, by member.
  [[nodiscard]] const std::map<int, Bytes>& gathered(const std::string& name) const;
  void forget_gather(const std::string& name) { gathers_.erase(name); }
  /// Members that departed under any incarnation and have not come back.
  [[nodiscard]] std::vector<int> lost_members() const;

 private:
  std::map<int, wire::MemberRecord> members_;
  std::map<int, std::pair<std::uint64_t, Departure>> departed_;
  std::map<std::string, std::map<int, wire::PublicationRecord>> publications_;
  std::map<std::string, std::map<int, Bytes>> gathers_;
};

}  // namespace shardwire
