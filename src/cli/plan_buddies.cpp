// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_buddies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "cli/command.hpp"
#include "cli/relabel.hpp"
#include "plan/buddies.hpp"
#include "support/checked.hpp"
#include "support/list_of.hpp"

namespace shardwire::cli {

LostHost without_host(const Case& job, int copies, int host) {
  const int hosts = support::ceil_div(job.source.ranks, job.ranks_per_host);
  if (host < 0 || host >= hosts) {
    throw UsageError(fmt::format("--lost-host {}: the source has hosts 0 to {}", host, hosts - 1));
  }
  if (!job.source.lost.empty()) throw UsageError("--lost-host: the case names lost source ranks itself");
  std::vector<std::int32_t> host_of;
  for (int rank = 0; rank < job.source.ranks; ++rank) host_of.push_back(rank / job.ranks_per_host);
  const Buddies buddies = buddies_of(host_of, copies);

  LostHost rest;
  JobLayout all = job.source.layout;
  std::vector<Rank> gone;          // holders
  std::vector<int> ranks;          // of them, those that are no copies
  std::vector<std::int32_t> left;  // hosts of the copies that stay
  rest.topology = topology_of(job);
  for (int rank = 0; rank < job.source.ranks; ++rank) {
    const bool is_gone = host_of[static_cast<std::size_t>(rank)] == host;
    bool replaced = !is_gone;
    if (is_gone) gone.push_back(Rank{rank});
    if (is_gone) ranks.push_back(rank);
    for (const Rank holder : buddies.of[static_cast<std::size_t>(rank)]) {
      const std::int32_t at = host_of[static_cast<std::size_t>(to_int(holder))];
      if (at == host) gone.push_back(Rank{all.holders()});
      if (at != host && replaced) left.push_back(at);
      // The first other holder takes the number of the rank.
      if (at != host && !replaced) rest.topology.source_host[static_cast<std::size_t>(rank)] = at;
      replaced = replaced || at != host;
      all.copies.push_back(Rank{rank});
    }
    if (!replaced) rest.lost.push_back(Rank{rank});
  }
  rest.source = all.without(gone);
  rest.topology.source_host.insert(rest.topology.source_host.end(), left.begin(), left.end());
  for (int target = 0; target < job.target.ranks; ++target) {
    const bool stays = target < job.source.ranks && target / job.ranks_per_host != host;
    rest.topology.colocated.push_back(stays ? target : -1);
  }
  const int made = std::min(copies, hosts - 1);
  rest.summary =
      fmt::format("host {} of {} is lost, with source ranks {}; each rank has {} {}", host, hosts,
                  support::list_of(ranks), made, made == 1 ? "copy on another host" : "copies on other hosts");
  return rest;
}

}  // namespace shardwire::cli
