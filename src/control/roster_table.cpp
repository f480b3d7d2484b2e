// SPDX-License-Identifier: Apache-2.0
#include "control/roster_table.hpp"

#include <fmt/core.h>

#include <set>
#include <tuple>

namespace shardwire {

namespace {

using GroupKey =
    std::tuple<std::uint32_t, std::uint64_t, std::int64_t, std::uint64_t, wire::Digest, wire::Digest, std::uint32_t>;

GroupKey key_of(const wire::RosterGroup& group) {
  return {group.epoch, group.origin, group.step, group.generation, group.manifest, group.values, group.attempt};
}

GroupKey key_of(const wire::PublicationRecord& record) {
  return {record.epoch, record.origin, record.step, record.generation, record.manifest, record.values, record.attempt};
}

}  // namespace

void RunBuilder::add(std::int32_t member, std::int32_t layout_rank, std::uint32_t group) {
  if (!runs_.empty()) {
    wire::MemberRun& last = runs_.back();
    const bool next_rank = group == 0 || layout_rank == last.layout_rank + last.count;
    if (last.group == group && member == last.first + last.count && next_rank) {
      ++last.count;
      return;
    }
  }
  runs_.push_back({member, 1, group == 0 ? 0 : layout_rank, group});
}

wire::Roster RosterTable::message_for(const Changes& changes) const {
  std::map<GroupKey, std::uint32_t> numbers;  // filled on first use
  wire::Roster message;
  RunBuilder runs;
  std::uint32_t last = last_number_;
  for (const auto& [member, record] : changes) {
    Entry wanted;
    if (record && record->live) {
      if (numbers.empty()) {
        for (const auto& [number, group] : groups_) numbers.emplace(key_of(group.is), number);
      }
      const auto [found, fresh] = numbers.try_emplace(key_of(*record), 0);
      if (fresh) {
        do ++last;
        while (last == 0 || groups_.contains(last));
        found->second = last;
        message.groups.push_back({last, record->epoch, record->origin, record->step, record->generation,
                                  record->manifest, record->values, record->attempt});
      }
      wanted = {found->second, record->layout_rank};
    }
    if (wanted != entry_of(member)) runs.add(member, wanted.layout_rank, wanted.group);
  }
  message.runs = runs.take();
  return message;
}

wire::Roster RosterTable::whole() const {
  wire::Roster message;
  message.whole = true;
  for (const auto& [number, group] : groups_) message.groups.push_back(group.is);
  RunBuilder runs;
  for (std::size_t member = 0; member < entries_.size(); ++member) {
    const Entry& entry = entries_[member];
    if (entry.group != 0) runs.add(static_cast<std::int32_t>(member), entry.layout_rank, entry.group);
  }
  message.runs = runs.take();
  return message;
}

void RosterTable::apply(const wire::Roster& message, std::int32_t members) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::transport_failed, fmt::format("the roster of '{}' {}", message.publication, why));
  };
  std::set<std::uint32_t> defined;
  for (const wire::RosterGroup& group : message.groups) {
    const bool taken = !message.whole && groups_.contains(group.number);
    if (group.number == 0 || taken || !defined.insert(group.number).second) {
      refuse(fmt::format("gives the number {} to a second group", group.number));
    }
  }
  std::int64_t end = 0;
  for (const wire::MemberRun& run : message.runs) {
    if (run.count < 1 || run.first < end) refuse("names a member twice");
    end = std::int64_t{run.first} + run.count;
    if (end > std::int64_t{members} + wire::max_guests) {
      refuse(fmt::format("names member {} of {}", end - 1, members));
    }
    if (run.group == 0 || defined.contains(run.group) || (!message.whole && groups_.contains(run.group))) continue;
    refuse(fmt::format("has no group {}", run.group));
  }

  if (message.whole) *this = RosterTable();
  for (const wire::RosterGroup& group : message.groups) {
    groups_.emplace(group.number, Group{group});
    last_number_ = group.number;
  }
  for (const wire::MemberRun& run : message.runs) {
    for (std::int32_t i = 0; i < run.count; ++i) {
      set(run.first + i, {run.group, run.group == 0 ? 0 : run.layout_rank + i});
    }
  }
  std::erase_if(groups_, [](const auto& group) { return group.second.members == 0; });
  if (publishing_ == 0) std::vector<Entry>().swap(entries_);
}

RosterTable::Entry RosterTable::entry_of(std::int32_t member) const {
  const auto index = static_cast<std::size_t>(member);
  return index < entries_.size() ? entries_[index] : Entry();
}

void RosterTable::set(std::int32_t member, Entry entry) {
  const auto index = static_cast<std::size_t>(member);
  if (index >= entries_.size()) {
    if (entry.group == 0) return;
    entries_.resize(index + 1);
  }
  Entry& now = entries_[index];
  if (now.group != 0) {
    --groups_.at(now.group).members;
    --publishing_;
  }
  if (entry.group != 0) {
    ++groups_.at(entry.group).members;
    ++publishing_;
  }
  now = entry;
}

bool RosterTable::has(std::int32_t member) const {
  return entry_of(member).group != 0;
}

wire::PublicationRecord RosterTable::record_of(std::int32_t member, const Entry& entry) const {
  const wire::RosterGroup& group = groups_.at(entry.group).is;
  return {.member = member,
          .epoch = group.epoch,
          .origin = group.origin,
          .layout_rank = entry.layout_rank,
          .step = group.step,
          .generation = group.generation,
          .live = true,
          .manifest = group.manifest,
          .values = group.values,
          .attempt = group.attempt};
}

std::optional<wire::PublicationRecord> RosterTable::record(std::int32_t member) const {
  const Entry entry = entry_of(member);
  if (entry.group == 0) return std::nullopt;
  return record_of(member, entry);
}

std::vector<wire::PublicationRecord> RosterTable::records() const {
  std::vector<wire::PublicationRecord> result;
  result.reserve(static_cast<std::size_t>(publishing_));
  for (std::size_t member = 0; member < entries_.size(); ++member) {
    if (entries_[member].group == 0) continue;
    result.push_back(record_of(static_cast<std::int32_t>(member), entries_[member]));
  }
  return result;
}

}  // namespace shardwire
