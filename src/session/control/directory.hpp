// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "session/control/roster_table.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// What this member knows of the others, from what the rendezvous said: rosters of the names it watches, addresses of the
/// members it asked for, and who has gone. What it has learnt it keeps.
/// Threads: loop thread only.
class Directory {
 public:
  /// `members`: size of the job; a message that names others is refused.
  explicit Directory(std::int32_t members) : members_(members) {}

  /// Errors: throws Error{transport_failed} for what cannot be true; nothing changes then.
  void apply(const wire::Roster& roster);
  void apply(const wire::MembershipChanges& membership_changes);
  void apply(const wire::Addresses& addresses);

  /// Address of the process that has a member number in its turn; null when it was not asked for.
  [[nodiscard]] const wire::MemberRecord* address(int member, std::uint32_t epoch) const;
  /// Presence::there for a member that never joined, too.
  [[nodiscard]] wire::Presence presence(int member) const;
  /// Whether the roster of `name` has come.
  [[nodiscard]] bool knows(const std::string& name) const { return rosters_.contains(name); }
  /// Live publications under `name`, by member; those of departed members left out.
  [[nodiscard]] std::vector<wire::PublicationRecord> publications(const std::string& name) const;
  /// What a member publishes under `name`, if anything; nothing once it has departed.
  [[nodiscard]] std::optional<wire::PublicationRecord> publication(const std::string& name, int member) const;
  /// Calls visit(PublicationRecord) for each under every name that is watched.
  template <typename Visit>
  void each_publication(Visit visit) const {
    for (const auto& [name, roster] : rosters_) {
      for (const wire::PublicationRecord& record : roster.records()) visit(record);
    }
  }
  /// Members that left or were lost and have not come back.
  [[nodiscard]] const std::map<int, wire::Presence>& departed() const { return departed_; }
  /// Size of the job.
  [[nodiscard]] std::int32_t members() const { return members_; }

 private:
  std::int32_t members_;
  std::map<std::string, RosterTable> rosters_;
  std::map<int, wire::Presence> departed_;
  std::map<int, wire::Addresses::Entry> addresses_;
};

}  // namespace shardwire
