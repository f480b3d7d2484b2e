// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <vector>

#include "wire/messages.hpp"

namespace shardwire {

/// Run-length encoder: add() is called once per member, members ascending.
class RunBuilder {
 public:
  void add(std::int32_t member, std::int32_t layout_rank, std::uint32_t group);
  [[nodiscard]] std::vector<wire::MemberRun> take() { return std::move(runs_); }

 private:
  std::vector<wire::MemberRun> runs_;
};

/// Publications under one name. The rendezvous and the watchers of the name keep equal tables: the rendezvous derives
/// messages from its own, and both sides apply() them, so that group numbers match.
/// Cost: 8 bytes per member, nothing while there is no publication.
class RosterTable {
 public:
  /// Members whose record is set; removed if the record is empty or not live.
  using Changes = std::map<std::int32_t, std::optional<wire::PublicationRecord>>;

  /// The message that makes these changes; does not apply them. Omits members without a change.
  [[nodiscard]] wire::Roster message_for(const Changes& changes) const;
  /// The message that copies this table.
  [[nodiscard]] wire::Roster whole() const;
  /// `members`: size of the job, whose guests come after them.
  /// Errors: throws Error{transport_failed} for members beyond those or unknown groups, before any change.
  void apply(const wire::Roster& message, std::int32_t members);

  [[nodiscard]] bool empty() const { return publishing_ == 0; }
  [[nodiscard]] bool has(std::int32_t member) const;
  /// The member's publication, if any. Cost: O(log groups).
  [[nodiscard]] std::optional<wire::PublicationRecord> record(std::int32_t member) const;
  /// By member, ascending.
  [[nodiscard]] std::vector<wire::PublicationRecord> records() const;

 private:
  struct Group {
    wire::RosterGroup is;
    std::int64_t members = 0;
  };
  struct Entry {
    std::uint32_t group = 0;
    std::int32_t layout_rank = 0;
    bool operator==(const Entry&) const = default;
  };
  [[nodiscard]] wire::PublicationRecord record_of(std::int32_t member, const Entry& entry) const;
  [[nodiscard]] Entry entry_of(std::int32_t member) const;
  void set(std::int32_t member, Entry entry);

  std::map<std::uint32_t, Group> groups_;
  std::vector<Entry> entries_;     // by member, up to the last publisher
  std::int64_t publishing_ = 0;    // members with a group
  std::uint32_t last_number_ = 0;  // reused only after all other numbers
};

}  // namespace shardwire
