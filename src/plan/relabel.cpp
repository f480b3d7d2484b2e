// SPDX-License-Identifier: Apache-2.0
#include "shardwire/relabel.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "plan/assignment.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
namespace {

constexpr ByteCount weight_limit = ByteCount{1} << 62;

std::vector<Flow> usable(int sources, int targets, std::span<const Flow> holdings, const std::vector<bool>& gone) {
  std::vector<Flow> flows;
  flows.reserve(holdings.size());
  for (const Flow& flow : holdings) {
    if (to_int(flow.source) < 0 || to_int(flow.source) >= sources || to_int(flow.target) < 0 ||
        to_int(flow.target) >= targets) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("relabelling: source rank {} and target rank {} are not among {} and {} ranks",
                              to_int(flow.source), to_int(flow.target), sources, targets));
    }
    if (flow.bytes > 0 && !gone[static_cast<std::size_t>(to_int(flow.source))]) flows.push_back(flow);
  }
  const auto by_pair = [](const Flow& a, const Flow& b) {
    return a.target != b.target ? a.target < b.target : a.source < b.source;
  };
  if (!std::is_sorted(flows.begin(), flows.end(), by_pair)) std::stable_sort(flows.begin(), flows.end(), by_pair);
  std::size_t kept = 0;
  for (const Flow& flow : flows) {
    const bool again = kept > 0 && flows[kept - 1].source == flow.source && flows[kept - 1].target == flow.target;
    const ByteCount before = again ? flows[kept - 1].bytes : 0;
    if (flow.bytes >= weight_limit - before) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("relabelling: the bytes of source rank {} and target rank {} do not fit 62 bits",
                              to_int(flow.source), to_int(flow.target)));
    }
    if (again) {
      flows[kept - 1].bytes += flow.bytes;
    } else {
      flows[kept++] = flow;
    }
  }
  flows.resize(kept);
  return flows;
}

// Converts bytes to weights. If it fits, pairs of equal rank get a small bonus, in total less than one byte's weight,
// so that it only decides between optimal assignments.
BipartiteGraph graph_of(int sources, int targets, const std::vector<Flow>& flows) {
  ByteCount largest = 0;
  for (const Flow& flow : flows) largest = std::max(largest, flow.bytes);
  const auto scale = static_cast<ByteCount>(targets) + 1;
  const bool fits = largest < weight_limit / scale - 1;
  BipartiteGraph graph;
  graph.sources = static_cast<std::uint32_t>(sources);
  graph.edges.reserve(flows.size());
  std::size_t next = 0;
  for (std::int32_t target = 0; target < targets; ++target) {
    for (; next < flows.size() && to_int(flows[next].target) == target; ++next) {
      const Flow& flow = flows[next];
      const ByteCount weight = fits ? flow.bytes * scale + (flow.source == flow.target ? 1 : 0) : flow.bytes;
      graph.edges.push_back({static_cast<std::uint32_t>(to_int(flow.source)), weight});
    }
    graph.first.push_back(static_cast<std::uint32_t>(graph.edges.size()));
  }
  return graph;
}

}  // namespace

std::vector<std::int32_t> best_assignment(int sources, int targets, std::span<const Flow> holdings,
                                          std::span<const Rank> lost) {
  if (sources < 0 || targets < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("relabelling: {} source and {} target ranks", sources, targets));
  }
  std::vector<bool> used(static_cast<std::size_t>(std::max(sources, 0)));
  for (const Rank rank : lost) {
    if (to_int(rank) >= 0 && to_int(rank) < sources) used[static_cast<std::size_t>(to_int(rank))] = true;
  }
  const Assignment best = assign(graph_of(sources, targets, usable(sources, targets, holdings, used)));
  std::vector<std::int32_t> labels;
  labels.reserve(best.source_of.size());
  for (const std::uint32_t source : best.source_of) {
    labels.push_back(source == unassigned ? -1 : static_cast<std::int32_t>(source));
    if (source != unassigned) used[source] = true;
  }
  // An unused source and an unassigned target share nothing, else the assignment would not be optimal.
  std::size_t next = 0;
  for (std::int32_t& label : labels) {
    if (label >= 0) continue;
    while (next < used.size() && used[next]) ++next;
    if (next == used.size()) break;
    label = static_cast<std::int32_t>(next);
    used[next] = true;
  }
  return labels;
}

}  // namespace shardwire
