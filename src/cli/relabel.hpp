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

/// `holdings`: as for best_assignment; `needed`: bytes that all target ranks want.
Relabelling relabel(const Case& job, const std::vector<Flow>& holdings, ByteCount needed);
/// For an unplanned case. Errors: throws Error{layout_mismatch} if a wanted region has no holder.
Relabelling relabel(const Case& job);

/// Process of each target rank: the labelled process, and for -1 the free ones of 0 .. processes-1 in order (a lost
/// rank's process is free). Requires: at least as many processes as labels.
std::vector<std::int32_t> processes_of(std::span<const std::int32_t> labels, int processes);

/// All ranks of a side, ascending.
std::vector<Rank> ranks_of(const JobLayout& side);

/// Locations of the ranks of a case, as far as the case gives them. `processes`: as from processes_of; empty: target
/// rank i is in the process of source rank i.
Topology topology_of(const Case& job, std::span<const std::int32_t> processes = {});

/// "0-5 in 0-5, 6 in 9, 7 in a new process": consecutive target ranks with the same pattern are one entry, at most
/// `entries` of them.
std::string label_text(std::span<const std::int32_t> labels, std::size_t entries);

}  // namespace shardwire::cli
