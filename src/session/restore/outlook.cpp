// SPDX-License-Identifier: Apache-2.0
#include "session/restore/outlook.hpp"

#include <algorithm>

namespace shardwire {

namespace {

bool counts(const wire::PublicationRecord& record, const Outlook& outlook) {
  return !outlook.step || record.step == *outlook.step;
}

std::optional<int> distance_of(std::span<const wire::PublicationRecord> records) {
  if (records.empty()) return std::nullopt;
  const int first = records.front().member - records.front().layout_rank;
  const bool same = std::all_of(records.begin(), records.end(),
                                [&](const auto& record) { return record.member - record.layout_rank == first; });
  return same ? std::optional(first) : std::nullopt;
}

std::vector<int> open_ranks(std::span<const wire::PublicationRecord> records, const Outlook& outlook) {
  std::vector<bool> published(static_cast<std::size_t>(outlook.ranks));
  for (const auto& record : records) {
    if (record.layout_rank < outlook.ranks && counts(record, outlook)) {
      published[static_cast<std::size_t>(record.layout_rank)] = true;
    }
  }
  std::vector<int> open;
  for (int rank = 0; rank < outlook.ranks; ++rank) {
    if (!published[static_cast<std::size_t>(rank)]) open.push_back(rank);
  }
  return open;
}

}  // namespace

std::vector<int> possible_publishers(const Directory& directory, std::span<const wire::PublicationRecord> records,
                                     const Outlook& outlook) {
  const int members = directory.members();
  std::vector<bool> may(static_cast<std::size_t>(members), true);
  for (const auto& [member, presence] : directory.departed()) may[static_cast<std::size_t>(member)] = false;
  for (const auto& record : records) {
    if (!outlook.step || record.step >= *outlook.step) may[static_cast<std::size_t>(record.member)] = false;
  }
  const std::vector<int> open = open_ranks(records, outlook);
  if (const auto distance = distance_of(records); distance && !open.empty()) {
    const auto in_job = [&](int rank) { return rank + *distance >= 0 && rank + *distance < members; };
    if (std::all_of(open.begin(), open.end(), in_job)) {
      std::vector<int> awaited;
      for (const int rank : open) {
        if (may[static_cast<std::size_t>(rank + *distance)]) awaited.push_back(rank + *distance);
      }
      return awaited;
    }
  }
  std::vector<int> all;
  for (int member = 0; member < members; ++member) {
    if (may[static_cast<std::size_t>(member)]) all.push_back(member);
  }
  const bool alone = all.size() == 1 && all.front() == outlook.member;
  if (!alone || outlook.own_on_its_way) return all;
  const std::size_t departed = directory.departed().size();
  const bool others_departed = outlook.ranks == 0 ? departed > 0 : open.size() <= departed;
  return others_departed ? std::vector<int>() : all;
}

}  // namespace shardwire
