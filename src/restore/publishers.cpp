// SPDX-License-Identifier: Apache-2.0
#include "restore/publishers.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "shardwire/error.hpp"
#include "support/list_of.hpp"

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

void check_layouts(std::span<const wire::PublicationRecord> records, const Metadata& known, const std::string& from) {
  if (records.empty()) return;
  const auto ranks_of = [&](const auto& record) { return known.manifests.at(record.manifest)->ranks; };
  const auto& first = records.front();
  for (const auto& record : records) {
    if (ranks_of(record) == ranks_of(first)) continue;
    throw Error(ErrorCode::layout_mismatch,
                fmt::format("source rank {} declares a layout over {}, source rank {} over {}", first.layout_rank,
                            support::counted(ranks_of(first), "rank"), record.layout_rank, ranks_of(record)),
                std::vector<Rank>{Rank{first.layout_rank}, Rank{record.layout_rank}});
  }
  for (std::size_t i = 1; i < records.size(); ++i) {
    if (records[i].layout_rank != records[i - 1].layout_rank) continue;
    throw Error(ErrorCode::layout_mismatch,
                fmt::format("members {} and {} both publish layout rank {} of '{}'", records[i - 1].member,
                            records[i].member, records[i].layout_rank, from),
                std::vector<Rank>{Rank{records[i].layout_rank}});
  }
}

JobLayout side_of(std::span<const wire::PublicationRecord> records,
                  std::span<const std::shared_ptr<const Manifest>> manifests) {
  JobLayout side;
  std::map<const Manifest*, std::size_t> sections;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto [entry, fresh] = sections.emplace(manifests[i].get(), side.sections.size());
    if (fresh) side.sections.push_back({manifests[i], {}});
    side.sections[entry->second].ranks.push_back(Rank{records[i].layout_rank});
    side.ranks = std::max(side.ranks, manifests[i]->ranks);
  }
  for (Section& section : side.sections) std::ranges::sort(section.ranks);
  return side;
}

}  // namespace shardwire::restore
