// SPDX-License-Identifier: Apache-2.0
#include "restore/later_ranks.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "restore/publishers.hpp"

namespace shardwire::restore {

namespace {

bool is_planned(const Planning& planning, std::int32_t layout_rank) {
  return std::ranges::find(planning.records, layout_rank, &wire::PublicationRecord::layout_rank) !=
         planning.records.end();
}

// The first publication of a rank is the rank, further ones are its copies.
void add(Planning& planning, const wire::PublicationRecord& record, const std::shared_ptr<const Manifest>& manifest) {
  const Rank rank{record.layout_rank};
  Rank holder = rank;
  if (is_planned(planning, record.layout_rank)) {
    holder = Rank{planning.from.holders()};
    planning.from.copies.push_back(rank);
  } else {
    auto section = std::ranges::find(planning.from.sections, manifest, &Section::manifest);
    if (section == planning.from.sections.end()) {
      section = planning.from.sections.insert(section, Section{manifest, {}});
    }
    section->ranks.insert(std::ranges::upper_bound(section->ranks, rank), rank);
  }
  planning.records.push_back(record);
  planning.manifests.push_back(manifest);
  planning.holders.push_back(holder);
}

void require_one_layout(const Planning& planning, const std::string& from) {
  Metadata known;
  for (std::size_t i = 0; i < planning.records.size(); ++i) {
    known.manifests.emplace(planning.records[i].manifest, planning.manifests[i]);
  }
  auto records = planning.records;
  std::ranges::stable_sort(records, {}, &wire::PublicationRecord::layout_rank);
  check_layouts(records, known, from);
}

}  // namespace

std::vector<wire::PublicationRecord> later_ranks(const Planning& planning,
                                                 std::span<const wire::PublicationRecord> published) {
  const StateOf state = StateOf::of(planning.records.front());
  std::vector<wire::PublicationRecord> later;
  std::ranges::copy_if(published, std::back_inserter(later), [&](const wire::PublicationRecord& record) {
    return StateOf::of(record) == state && !is_planned(planning, record.layout_rank);
  });
  std::ranges::stable_sort(later, {}, &wire::PublicationRecord::layout_rank);
  return later;
}

bool awaits_later_ranks(const Planning& planning, const NameView& name) {
  const int ranks = planning.from.ranks;
  return !open_ranks(planning.records, {.ranks = ranks}).empty() &&
         !name.possible(ranks, planning.records.front().step).empty();
}

LaterPlan plan_with(Planning planning, std::span<const PieceBox> missing, const Unavailable& unavailable,
                    std::span<const wire::PublicationRecord> later,
                    std::span<const std::shared_ptr<const Manifest>> manifests, const Wanted& wanted, int member,
                    const RestoreOptions& options) {
  for (std::size_t i = 0; i < later.size(); ++i) add(planning, later[i], manifests[i]);
  require_one_layout(planning, options.name);
  Planner planner = planner_of(planning, wanted, member, options.replicas);
  const Plan before = std::exchange(planning.plan, planner.plan(wanted.catalog->layout_rank()));
  CarriedOver carried = carry_over(before, missing, planning.plan);
  const bool held = without_holder(planning.plan, carried.boxes, unavailable.lost, unavailable.corrupt).empty();
  if (!held || !carried.gaps.empty()) return {};
  planning.plan.gaps.clear();  // what was settled when the restore was planned
  planning.schedule = planner.schedule(planning.plan);
  return {std::make_shared<Planning>(std::move(planning)), std::move(carried.boxes)};
}

}  // namespace shardwire::restore
