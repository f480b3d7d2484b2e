// SPDX-License-Identifier: Apache-2.0
#include "restore/publishers.hpp"

#include <algorithm>

namespace shardwire::restore {

namespace {

bool counts(const wire::PublicationRecord& record, const PublishersInput& input) {
  return !input.step || record.step == *input.step;
}

std::optional<int> distance_of(std::span<const wire::PublicationRecord> records) {
  if (records.empty()) return std::nullopt;
  const int first = records.front().member - records.front().layout_rank;
  const bool same = std::all_of(records.begin(), records.end(),
                                [&](const auto& record) { return record.member - record.layout_rank == first; });
  return same ? std::optional(first) : std::nullopt;
}

}  // namespace

std::vector<int> open_ranks(std::span<const wire::PublicationRecord> records, const PublishersInput& input) {
  std::vector<bool> published(static_cast<std::size_t>(input.ranks));
  for (const auto& record : records) {
    if (record.layout_rank < input.ranks && counts(record, input)) {
      published[static_cast<std::size_t>(record.layout_rank)] = true;
    }
  }
  std::vector<int> open;
  for (int rank = 0; rank < input.ranks; ++rank) {
    if (!published[static_cast<std::size_t>(rank)]) open.push_back(rank);
  }
  return open;
}

std::vector<int> possible_publishers(const Directory& directory, std::span<const wire::PublicationRecord> records,
                                     const PublishersInput& input) {
  const int members = directory.members();
  std::vector<bool> may(static_cast<std::size_t>(members), true);
  for (const auto& [member, presence] : directory.departed()) may[static_cast<std::size_t>(member)] = false;
  for (const auto& record : records) {
    if (!input.step || record.step >= *input.step) may[static_cast<std::size_t>(record.member)] = false;
  }
  const std::vector<int> open = open_ranks(records, input);
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
  const bool alone = all.size() == 1 && all.front() == input.member;
  if (!alone || input.own_on_its_way) return all;
  const std::size_t departed = directory.departed().size();
  const bool others_departed = input.ranks == 0 ? departed > 0 : open.size() <= departed;
  return others_departed ? std::vector<int>() : all;
}

}  // namespace shardwire::restore
