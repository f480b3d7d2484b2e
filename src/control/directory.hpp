// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control/roster_table.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// This member's knowledge of the others, as received from the rendezvous: rosters of watched names,
/// addresses, and departures. Keeps what it has received.
/// Threads: loop thread only.
class Directory {
 public:
  /// `members`: size of the job; messages that name other members are refused.
  explicit Directory(std::int32_t members) : members_(members) {}
  /// For a guest, which learns the size when it joins.
  void set_members(std::int32_t members) { members_ = members; }

  /// Errors: throws Error{transport_failed} for an impossible message; nothing changes then.
  void apply(const wire::Roster& roster);
  /// Forgets the roster of a name.
  void forget(const std::string& name) { rosters_.erase(name); }
  void apply(const wire::MembershipChanges& membership_changes);
  void apply(const wire::Addresses& addresses);
  void apply(const wire::ExchangeGivenUp& notice);

  /// Address of the process that has a member number in this epoch; null if it has not come.
  [[nodiscard]] const wire::MemberRecord* address(int member, std::uint32_t epoch) const;
  /// Also Presence::there for a member that never joined.
  [[nodiscard]] wire::Presence presence(int member) const;
  /// Whether the roster of `name` has arrived.
  [[nodiscard]] bool knows(const std::string& name) const { return rosters_.contains(name); }
  /// Live publications under `name`, by member, without those of departed members.
  [[nodiscard]] std::vector<wire::PublicationRecord> publications(const std::string& name) const;
  /// A member's publication under `name`, if any; none once it has departed.
  [[nodiscard]] std::optional<wire::PublicationRecord> publication(const std::string& name, int member) const;
  /// Calls visit(PublicationRecord) for each publication under every watched name.
  template <typename Visit>
  void each_publication(Visit visit) const {
    for (const auto& [name, roster] : rosters_) {
      for (const wire::PublicationRecord& record : roster.records()) visit(record);
    }
  }
  /// Members and guests that left or were lost and have not come back.
  [[nodiscard]] const std::map<int, wire::Presence>& departed() const { return departed_; }
  /// Number of losses so far: members that were lost, each time, guests not counted.
  [[nodiscard]] std::size_t losses() const { return losses_.size(); }
  /// Members that were lost after the first `losses` of them, come back or not; ascending.
  [[nodiscard]] std::vector<int> lost_since(std::size_t losses) const;
  /// Whether a member has stopped in this exchange, or in a later one.
  [[nodiscard]] bool is_given_up(std::uint64_t exchange) const { return exchange <= given_up_.exchange; }
  /// The last exchange that was given up, and why; number 0: none.
  [[nodiscard]] const wire::ExchangeGivenUp& given_up() const { return given_up_; }
  /// Size of the job.
  [[nodiscard]] std::int32_t members() const { return members_; }

 private:
  std::int32_t members_;
  std::map<std::string, RosterTable> rosters_;
  std::map<int, wire::Presence> departed_;
  std::vector<int> losses_;  // in their order
  std::map<int, wire::Addresses::Entry> addresses_;
  wire::ExchangeGivenUp given_up_;
};

}  // namespace shardwire
