// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "shardwire/plan.hpp"

namespace shardwire::cli {

/// The best assignment of a case's target ranks to processes.
struct Relabelling {
  std::vector<std::int32_t> labels;  ///< by target rank; -1: a new process
  ByteCount remote = 0;              ///< bytes that then cross between processes
};

/// `holdings`: as best_assignment takes them; `needed`: bytes that all target ranks want.
Relabelling relabel(const Case& job, const std::vector<Flow>& holdings, ByteCount needed);
/// For a case of which nothing is known yet. Errors: throws Error{layout_mismatch} where a wanted region has no holder.
Relabelling relabel(const Case& job);

/// Process of each target rank: the one that its label names, and for -1 the free ones of 0 .. processes-1 in order (a
/// lost rank's process is free). Requires: as many processes as there are labels, at least.
std::vector<std::int32_t> processes_of(std::span<const std::int32_t> labels, int processes);

/// All ranks of a side, ascending.
std::vector<Rank> ranks_of(const JobLayout& side);

/// Where the ranks of a case run, as far as it says so. `processes`: as processes_of gives them; empty: target rank i is in
/// the process of source rank i.
Topology topology_of(const Case& job, std::span<const std::int32_t> processes = {});

/// "0-5 in 0-5, 6 in 9, 7 in a new process": runs of target ranks that lie alike are one entry, at most `entries` of them.
std::string label_text(std::span<const std::int32_t> labels, std::size_t entries);

}  // namespace shardwire::cli
