// SPDX-License-Identifier: Apache-2.0
#include "restore/planning.hpp"

#include <algorithm>
#include <utility>

#include "restore/publishers.hpp"
#include "restore/target.hpp"

namespace shardwire::restore {

namespace {

// The plan assumes that processes keep their ranks if this process did, and that none is colocated if it did not: only
// this process's old rank is known.
Topology topology_of(const Planning& planning, int member, Rank layout_rank, int ranks) {
  std::int32_t own = -1;
  int source_ranks = 0;
  for (std::size_t i = 0; i < planning.records.size(); ++i) {
    if (planning.records[i].member == member) own = to_int(planning.holders[i]);
    source_ranks = std::max(source_ranks, planning.records[i].layout_rank + 1);
  }
  Topology topology;
  for (std::int32_t other = 0; other < ranks; ++other) {
    topology.colocated.push_back(own == to_int(layout_rank) && other < source_ranks ? other : -1);
  }
  topology.colocated[static_cast<std::size_t>(to_int(layout_rank))] = own;
  return topology;
}

}  // namespace

Planner planner_of(const Planning& planning, const Wanted& wanted, int member, Replicas replicas) {
  const int ranks = wanted.manifest->ranks;
  // Assumes that every rank of the new layout restores too: readers then spread evenly over replicas.
  JobLayout to{ranks, {{wanted.manifest, {}}}};
  for (int rank = 0; rank < ranks; ++rank) to.sections[0].ranks.push_back(Rank{rank});
  return Planner(planning.from, std::move(to), topology_of(planning, member, wanted.catalog->layout_rank(), ranks),
                 replicas);
}

void plan_into(Planning& planning, const Wanted& wanted, int member, Replicas replicas) {
  planning.from = side_of(planning.records, planning.manifests);
  planning.holders = holders_of(planning.records, planning.from);
  Planner planner = planner_of(planning, wanted, member, replicas);
  planning.plan = planner.plan(wanted.catalog->layout_rank());
  planning.resolved = resolve_values(*wanted.catalog, planning.from, planning.plan, planning.values, planning.scope,
                                     agreement_on_elements(replicas));
  if (!planning.plan.gaps.empty()) return;
  planning.schedule = planner.schedule(planning.plan);
  if (replicas == Replicas::compare) planning.others = OtherHolders(planner, planning.plan);
}

void add_copies(Planning& planning, std::span<const wire::PublicationRecord> published) {
  for (const wire::PublicationRecord& record : published) {
    if (std::ranges::find(planning.records, record) != planning.records.end()) continue;
    const auto same = std::ranges::find_if(planning.records, [&](const wire::PublicationRecord& known) {
      return known.layout_rank == record.layout_rank && known.step == record.step && known.origin == record.origin &&
             known.manifest == record.manifest;
    });
    if (same == planning.records.end()) continue;
    const auto manifest = planning.manifests[static_cast<std::size_t>(same - planning.records.begin())];
    planning.holders.push_back(add_copy(planning.from, planning.plan, Rank{record.layout_rank}));
    planning.manifests.push_back(manifest);
    planning.records.push_back(record);
  }
}

}  // namespace shardwire::restore
