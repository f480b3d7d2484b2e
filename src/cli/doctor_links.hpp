// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "cli/run_result.hpp"
#include "perf/measure/port_flags.hpp"

namespace shardwire::cli {

/// Returns the faults of the links of the members of a job: a NIC on another socket than the ranks that receive through it, interfaces of
/// one name with different MTUs, and InfiniBand subnets in which some hosts have no port.
std::vector<perf::Flag> flag_links(std::span<const MemberResult> results);

}  // namespace shardwire::cli
