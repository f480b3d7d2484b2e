// SPDX-License-Identifier: Apache-2.0
#include "cli/relabel.hpp"

#include <fmt/format.h>

#include "shardwire/relabel.hpp"

namespace shardwire::cli {

Relabelling relabel(const Case& job, const std::vector<Flow>& holdings, ByteCount needed) {
  Relabelling result;
  result.labels = best_assignment(job.source.ranks, job.target.ranks, holdings, job.source.lost);
  result.remote = needed;
  for (const Flow& flow : holdings) {
    if (result.labels[static_cast<std::size_t>(to_int(flow.target))] == to_int(flow.source))
      result.remote -= flow.bytes;
  }
  return result;
}

Relabelling relabel(const Case& job) {
  Planner planner(job.source.layout, job.target.layout);
  const ByteCount needed = planner.totals().needed;  // refuses gaps
  return relabel(job, planner.holdings(), needed);
}

std::vector<std::int32_t> processes_of(std::span<const std::int32_t> labels, int processes) {
  std::vector<bool> used(static_cast<std::size_t>(processes));
  for (const std::int32_t label : labels) {
    if (label >= 0) used[static_cast<std::size_t>(label)] = true;
  }
  std::vector<std::int32_t> result(labels.begin(), labels.end());
  std::size_t next = 0;
  for (std::int32_t& process : result) {
    if (process >= 0) continue;
    while (used[next]) ++next;
    process = static_cast<std::int32_t>(next++);
  }
  return result;
}

std::vector<Rank> ranks_of(const JobLayout& side) {
  std::vector<Rank> ranks;
  ranks.reserve(static_cast<std::size_t>(side.ranks));
  for (std::int32_t rank = 0; rank < side.ranks; ++rank) ranks.push_back(Rank{rank});
  return ranks;
}

Topology topology_of(const Case& job, std::span<const std::int32_t> processes) {
  Topology topology;
  for (const std::int32_t process : processes) topology.colocated.push_back(process < job.source.ranks ? process : -1);
  if (job.ranks_per_host == 0) return topology;
  for (std::int32_t s = 0; s < job.source.ranks; ++s) topology.source_host.push_back(s / job.ranks_per_host);
  for (std::int32_t t = 0; t < job.target.ranks; ++t) {
    const std::int32_t process = processes.empty() ? t : processes[static_cast<std::size_t>(t)];
    topology.target_host.push_back(process / job.ranks_per_host);
  }
  return topology;
}

std::string label_text(std::span<const std::int32_t> labels, std::size_t entries) {
  std::string text;
  std::size_t first = 0;
  for (std::size_t shown = 0; first < labels.size(); ++shown) {
    if (shown == entries) return text + fmt::format(", .. ({} target ranks more)", labels.size() - first);
    const bool fresh = labels[first] < 0;
    std::size_t last = first + 1;
    while (last < labels.size() && labels[last] == (fresh ? -1 : labels[last - 1] + 1)) ++last;
    const auto range = [](auto from, auto to) {
      return from == to ? fmt::format("{}", from) : fmt::format("{}-{}", from, to);
    };
    const std::string place = !fresh              ? range(labels[first], labels[last - 1])
                              : last - first == 1 ? "a new process"
                                                  : "new processes";
    text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", range(first, last - 1), place);
    first = last;
  }
  return text;
}

}  // namespace shardwire::cli
