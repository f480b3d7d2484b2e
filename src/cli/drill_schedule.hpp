// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "case/case.hpp"
#include "cli/fault.hpp"

namespace shardwire::cli {

/// The faults of one seed: one or two, each of one of these kinds, at different source ranks that hold something, at a
/// percentage of the payload or at the begin of a stage. Pure: a seed means the same faults on every machine.
/// Requires: at least one kind, and a source rank that is not lost.
std::vector<Fault> faults_of_seed(std::uint64_t seed, const Case& job, std::span<const FaultKind> kinds);

}  // namespace shardwire::cli
