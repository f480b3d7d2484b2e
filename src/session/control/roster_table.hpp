// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <vector>

#include "wire/messages.hpp"

namespace shardwire {

/// Runs that say the same as one call of add() per member, members ascending.
class RunBuilder {
 public:
  void add(std::int32_t member, std::int32_t layout_rank, std::uint32_t group);
  [[nodiscard]] std::vector<wire::MemberRun> take() { return std::move(runs_); }

 private:
  std::vector<wire::MemberRun> runs_;
};

/// Who publishes what under one name. The rendezvous and those who watch the name keep equal tables: it makes messages from
/// its own, and both sides apply() them, so that group numbers mean the same on both.
/// Cost: 8 bytes per member, nothing while nobody publishes.
class RosterTable {
 public:
  /// Members whose record is to be set, or removed when it is empty or not live.
  using Changes = std::map<std::int32_t, std::optional<wire::PublicationRecord>>;

  /// The message that makes these changes; nothing changes yet. Members that stay as they are are left out.
  [[nodiscard]] wire::Roster message_for(const Changes& changes) const;
  /// The message that makes a copy of this table.
  [[nodiscard]] wire::Roster whole() const;
  /// Errors: throws Error{transport_failed} for members past `members` or groups that do not exist, before any change.
  void apply(const wire::Roster& message, std::int32_t members);

  [[nodiscard]] bool empty() const { return publishing_ == 0; }
  [[nodiscard]] bool has(std::int32_t member) const;
  /// What the member publishes, if anything. Cost: O(log groups).
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
  std::vector<Entry> entries_;     // by member, up to the last that published
  std::int64_t publishing_ = 0;    // members with a group
  std::uint32_t last_number_ = 0;  // numbers are used again only after all others
};

}  // namespace shardwire
