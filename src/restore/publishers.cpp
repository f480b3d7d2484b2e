// SPDX-License-Identifier: Apache-2.0
#include "restore/publishers.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "shardwire/error.hpp"
#include "support/list_of.hpp"

namespace shardwire::restore {

namespace {

bool counts(const wire::PublicationRecord& record, const PublishersInput& input) {
  return !input.step || record.step == *input.step;
}

// Member minus layout rank of one publication of each rank, if that is the same for all. The members at that distance from
// the `open` ranks exist, and publish no other rank. None if several distances fit.
std::optional<int> distance_of(std::span<const wire::PublicationRecord> records, const std::vector<int>& open,
                               int members) {
  std::set<int> ranks;
  std::map<int, std::set<int>> at_distance;
  std::map<int, int> rank_of_member;
  for (const auto& record : records) {
    ranks.insert(record.layout_rank);
    at_distance[record.member - record.layout_rank].insert(record.layout_rank);
    rank_of_member[record.member] = record.layout_rank;
  }
  std::optional<int> only;
  for (const auto& [distance, there] : at_distance) {
    const auto may_be_at = [&, d = distance](int rank) {
      const auto found = rank_of_member.find(rank + d);
      return rank + d >= 0 && rank + d < members && (found == rank_of_member.end() || found->second == rank);
    };
    if (there != ranks || !std::ranges::all_of(open, may_be_at)) continue;
    if (only) return std::nullopt;
    only = distance;
  }
  return only;
}

// By origin.
std::map<std::uint64_t, std::uint32_t> attempts_of(std::span<const wire::PublicationRecord> published) {
  std::map<std::uint64_t, std::uint32_t> attempts;
  for (const auto& record : published) {
    std::uint32_t& highest = attempts[record.origin];
    highest = std::max(highest, record.attempt);
  }
  return attempts;
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
  std::size_t departed = 0;  // guests come after the members; whether one is to come, nobody knows
  for (const auto& [member, presence] : directory.departed()) {
    if (member >= members) continue;
    may[static_cast<std::size_t>(member)] = false;
    ++departed;
  }
  for (const auto& record : records) {
    if (record.member >= members) continue;
    if (!input.step || record.step >= *input.step) may[static_cast<std::size_t>(record.member)] = false;
  }
  const std::vector<int> open = open_ranks(records, input);
  if (const auto distance = distance_of(records, open, members); distance && !open.empty()) {
    std::vector<int> awaited;
    for (const int rank : open) {
      if (may[static_cast<std::size_t>(rank + *distance)]) awaited.push_back(rank + *distance);
    }
    return awaited;
  }
  std::vector<int> all;
  for (int member = 0; member < members; ++member) {
    if (may[static_cast<std::size_t>(member)]) all.push_back(member);
  }
  const bool alone = all.size() == 1 && all.front() == input.member;
  if (!alone || input.own_on_its_way) return all;
  const bool others_departed = input.ranks == 0 ? departed > 0 : open.size() <= departed;
  return others_departed ? std::vector<int>() : all;
}

std::vector<PublishedState> by_preference(std::span<const wire::PublicationRecord> published) {
  const std::map<std::uint64_t, std::uint32_t> attempts = attempts_of(published);
  using Key = std::tuple<bool, std::uint32_t, std::int64_t, std::uint64_t>;
  std::map<Key, PublishedState, std::greater<>> states;
  for (const auto& record : published) {
    const std::uint32_t attempt = attempts.at(record.origin);
    PublishedState& state = states[Key(record.origin == 0, attempt, record.step, record.origin)];
    state.of = StateOf::of(record);
    state.records.push_back(record);
  }
  std::vector<PublishedState> ordered;
  for (auto& [key, state] : states) ordered.push_back(std::move(state));
  return ordered;
}

std::optional<std::int64_t> higher_kept_step(std::span<const wire::PublicationRecord> published, const StateOf& taken) {
  const auto is_kept = [](const wire::PublicationRecord& record) { return record.origin != 0; };
  if (std::ranges::none_of(published, is_kept)) return std::nullopt;
  std::int64_t highest = taken.step;
  bool after = false;
  for (const PublishedState& state : by_preference(published)) {
    if (after) highest = std::max(highest, state.of.step);
    after = after || state.of == taken;
  }
  if (highest == taken.step) return std::nullopt;
  return highest;
}

void warn_of_higher_step(const Context& context, const std::string& name,
                         std::span<const wire::PublicationRecord> published, const StateOf& taken) {
  const std::optional<std::int64_t> higher = higher_kept_step(published, taken);
  if (!higher) return;
  context.warn_once(
      fmt::format("step {} of '{}' is kept", *higher, name),
      fmt::format("'{}': step {} counts as newer than step {}, which keepers hold of an earlier attempt of the job: a "
                  "restore that names a step reaches that one",
                  name, taken.step, *higher));
}

void keep_one_origin(std::vector<wire::PublicationRecord>& records) {
  std::map<std::uint64_t, std::set<int>> ranks;
  for (const auto& record : records) ranks[record.origin].insert(record.layout_rank);
  if (ranks.size() < 2) return;
  std::uint64_t best = 0;
  if (!ranks.contains(0)) {
    const std::map<std::uint64_t, std::uint32_t> attempts = attempts_of(records);
    best = std::ranges::max_element(ranks, {}, [&](const auto& one) {
             return std::tuple(one.second.size(), attempts.at(one.first), one.first);
           })->first;
  }
  std::erase_if(records, [&](const auto& record) { return record.origin != best; });
}

std::optional<std::int64_t> newest_common_step(std::span<const wire::PublicationRecord> records) {
  std::set<int> ranks;
  std::map<std::int64_t, std::set<int>> at_step;
  for (const auto& record : records) {
    ranks.insert(record.layout_rank);
    at_step[record.step].insert(record.layout_rank);
  }
  for (auto one = at_step.rbegin(); one != at_step.rend(); ++one) {
    if (one->second == ranks) return one->first;
  }
  return std::nullopt;
}

void check_layouts(std::span<const wire::PublicationRecord> records, const Metadata& known, const std::string& from) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    for (std::size_t j = i; j-- > 0 && records[j].layout_rank == records[i].layout_rank;) {
      if (records[j].step != records[i].step || records[j].manifest == records[i].manifest) continue;
      throw Error(
          ErrorCode::layout_mismatch,
          fmt::format("members {} and {} both publish layout rank {} of '{}' at step {}, but with different tensors "
                      "or layouts",
                      records[j].member, records[i].member, records[i].layout_rank, from, records[i].step),
          std::vector<Rank>{Rank{records[i].layout_rank}});
    }
  }
  const auto ranks_of = [&](const auto& record) { return known.manifests.at(record.manifest)->ranks; };
  for (const auto& record : records) {
    const auto& first = records.front();
    if (ranks_of(record) == ranks_of(first)) continue;
    throw Error(ErrorCode::layout_mismatch,
                fmt::format("source rank {} declares a layout over {}, source rank {} over {}", first.layout_rank,
                            support::counted(ranks_of(first), "rank"), record.layout_rank, ranks_of(record)),
                std::vector<Rank>{Rank{first.layout_rank}, Rank{record.layout_rank}});
  }
}

JobLayout side_of(std::span<const wire::PublicationRecord> records,
                  std::span<const std::shared_ptr<const Manifest>> manifests) {
  JobLayout side;
  std::map<const Manifest*, std::size_t> sections;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto [entry, fresh] = sections.emplace(manifests[i].get(), side.sections.size());
    if (fresh) side.sections.push_back({manifests[i], {}});
    const bool copy = i > 0 && records[i].layout_rank == records[i - 1].layout_rank;
    (copy ? side.copies : side.sections[entry->second].ranks).push_back(Rank{records[i].layout_rank});
    side.ranks = std::max(side.ranks, manifests[i]->ranks);
  }
  for (Section& section : side.sections) std::ranges::sort(section.ranks);
  return side;
}

std::vector<Rank> holders_of(std::span<const wire::PublicationRecord> records, const JobLayout& side) {
  std::vector<Rank> holders;
  int next = side.ranks;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const bool copy = i > 0 && records[i].layout_rank == records[i - 1].layout_rank;
    holders.push_back(Rank{copy ? next++ : records[i].layout_rank});
  }
  return holders;
}

std::vector<wire::PublicationRecord> RosterView::publications() const {
  auto records = context_.directory.publications(name_);
  std::erase_if(records, [&](const auto& record) { return target_ != nullptr && target_->is_excluded(record); });
  std::ranges::stable_sort(records, {}, &wire::PublicationRecord::layout_rank);
  return records;
}

std::vector<int> RosterView::possible(int ranks, std::optional<std::int64_t> step) const {
  if (context_.membership.lost() != nullptr) return {};
  const auto records = publications();
  const int member = context_.member;
  const bool listed = std::ranges::any_of(records, [&](const auto& record) { return record.member == member; });
  const bool own_on_its_way = !listed && context_.own_publication(name_) != nullptr;
  return possible_publishers(context_.directory, records, {member, own_on_its_way, step, ranks});
}

StepChoice::Records StepChoice::next(const Records& published,
                                     const std::function<bool(const Records& state)>& is_whole) {
  std::vector<PublishedState> states = by_preference(published);
  std::erase_if(incomplete_, [&](const auto& one) {
    const auto now = std::ranges::find(states, one.first, &PublishedState::of);
    return now == states.end() || now->records != one.second.records;
  });
  if (is_whole) {
    std::stable_partition(states.begin(), states.end(),
                          [&](const PublishedState& state) { return state.of.origin == 0 || is_whole(state.records); });
  }
  for (PublishedState& state : states) {
    if (!incomplete_.contains(state.of)) return std::move(state.records);
  }
  return {};
}

bool StepChoice::is_exhausted(const Records& published) const {
  return std::ranges::all_of(by_preference(published), [&](const PublishedState& state) {
    const auto known = incomplete_.find(state.of);
    return known != incomplete_.end() && known->second.records == state.records;
  });
}

void StepChoice::note_incomplete(const Records& records, const std::vector<Gap>& gaps) {
  incomplete_[StateOf::of(records.front())] = {records, gaps};
}

std::vector<IncompleteStep> StepChoice::incomplete_before(const Records& published, const StateOf& taken) const {
  if (incomplete_.empty()) return {};
  std::map<StateOf, Passed> preferred;
  for (const PublishedState& state : by_preference(published)) {
    if (state.of == taken) break;
    const auto known = incomplete_.find(state.of);
    if (known != incomplete_.end() && state.of.step != taken.step) preferred.insert(*known);
  }
  return listed(preferred);
}

std::vector<IncompleteStep> StepChoice::incomplete() const {
  return listed(incomplete_);
}

std::vector<IncompleteStep> StepChoice::listed(const std::map<StateOf, Passed>& passed) {
  std::vector<IncompleteStep> all;
  for (const auto& [which, one] : passed) {
    if (all.empty() || all.back().step != which.step) all.push_back({which.step, one.gaps});
  }
  return all;
}

}  // namespace shardwire::restore
