// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// Text of a case in which every target rank wants `wanted_bytes`, all from one other rank (or from its own process,
/// with `local`), in runs of `run_bytes` each: every other run of twice as much memory.
/// Requires: 4 divides run_bytes, run_bytes divides wanted_bytes.
std::string synthetic_case(int ranks, ByteCount run_bytes, ByteCount wanted_bytes, bool local);

/// The same for these pairs only; the other ranks hold and want nothing. Requires: no rank is a target twice.
std::string pairs_case(const std::string& name, int ranks, std::span<const Pair> pairs, ByteCount run_bytes,
                       ByteCount wanted_bytes);

/// Sets of pairs to be measured one after another: each pair of ranks alone, in both directions; then, from four ranks
/// on, rank i of the first half of an even number with rank i of the second, all at once, in either direction.
std::vector<std::vector<Pair>> sets_of_pairs(int ranks);

/// The text of a case file with another number of layers. Errors: throws CaseError.
std::string with_layers(const std::string& case_text, int layers);

/// As with load_case. Errors: throws CaseError.
Measurement measurement_of(std::string case_text);

}  // namespace shardwire::perf
