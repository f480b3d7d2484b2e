// SPDX-License-Identifier: Apache-2.0
#include "control/directory.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace shardwire {

namespace {

void check_member(std::int64_t member, std::int32_t members) {
  if (member >= 0 && member < std::int64_t{members} + wire::max_guests) return;
  throw Error(ErrorCode::transport_failed, fmt::format("the rendezvous named member {} of {}", member, members));
}

}  // namespace

void Directory::apply(const wire::Roster& roster) {
  const auto found = rosters_.find(roster.publication);
  if (found != rosters_.end()) return found->second.apply(roster, members_);
  if (!roster.whole) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("the roster of '{}' begins with a change", roster.publication));
  }
  RosterTable table;
  table.apply(roster, members_);
  rosters_.emplace(roster.publication, std::move(table));
}

void Directory::apply(const wire::MembershipChanges& membership_changes) {
  for (const wire::MemberRun& run : membership_changes.runs) {
    check_member(run.first, members_);
    check_member(std::int64_t{run.first} + run.count - 1, members_);
  }
  for (const wire::MemberRun& run : membership_changes.runs) {
    for (int member = run.first; member < run.first + run.count; ++member) {
      const auto now = static_cast<wire::Presence>(run.group);
      if (now == wire::Presence::there) {
        departed_.erase(member);
      } else {
        const auto before = departed_.find(member);
        const bool lost = before != departed_.end() && before->second == wire::Presence::lost;
        if (now == wire::Presence::lost && !lost && member < members_) losses_.push_back(member);
        departed_[member] = now;
      }
    }
  }
}

void Directory::apply(const wire::Addresses& addresses) {
  for (const auto& entry : addresses.members) check_member(entry.member.rank, members_);
  for (const auto& entry : addresses.members) addresses_[entry.member.rank] = entry;
}

void Directory::apply(const wire::ExchangeGivenUp& notice) {
  check_member(notice.member, members_);
  if (notice.exchange > given_up_.exchange) given_up_ = notice;
}

std::vector<int> Directory::lost_since(std::size_t losses) const {
  std::vector<int> members(losses_.begin() + static_cast<std::ptrdiff_t>(losses), losses_.end());
  std::ranges::sort(members);
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

const wire::MemberRecord* Directory::address(int member, std::uint32_t epoch) const {
  const auto found = addresses_.find(member);
  return found == addresses_.end() || found->second.epoch != epoch ? nullptr : &found->second.member;
}

wire::Presence Directory::presence(int member) const {
  const auto found = departed_.find(member);
  return found == departed_.end() ? wire::Presence::there : found->second;
}

std::vector<wire::PublicationRecord> Directory::publications(const std::string& name) const {
  const auto found = rosters_.find(name);
  if (found == rosters_.end()) return {};
  auto records = found->second.records();
  // The rendezvous withdraws a departed member's publications, possibly one message later.
  if (!departed_.empty()) {
    std::erase_if(records, [&](const auto& record) { return presence(record.member) != wire::Presence::there; });
  }
  return records;
}

std::optional<wire::PublicationRecord> Directory::publication(const std::string& name, int member) const {
  const auto found = rosters_.find(name);
  if (found == rosters_.end() || presence(member) != wire::Presence::there) return std::nullopt;
  return found->second.record(member);
}

}  // namespace shardwire
