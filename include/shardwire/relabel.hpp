// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shardwire/export.hpp"
#include "shardwire/plan.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Computes the process in which each target rank should run so that the fewest bytes cross between processes: the
/// exact optimum of the linear assignment problem. Among equal optima it prefers to keep target rank t in process t
/// where it shares bytes with source rank t. A pure function of its arguments.
/// `holdings`: how many of the bytes that a target rank wants each source rank holds. Unlisted pairs share nothing; a
///             pair listed twice counts twice. Any order. Byte counts fit 62 bits.
/// `lost`:     source ranks whose processes are not available.
/// Returns, for each target rank, the source rank whose process takes it. Target ranks that share nothing take unused
/// processes in ascending order. -1 means a new process; it occurs only if there are more target ranks than remaining
/// source ranks.
/// Errors: throws Error{invalid_argument} for a rank out of range or bytes beyond 62 bits.
/// Cost: O(pairs) memory; 1,024 x 1,016 ranks of a chunked model take milliseconds, 16,384 x 16,320 seconds.
std::vector<std::int32_t> best_assignment(int sources, int targets, std::span<const Flow> holdings,
                                          std::span<const Rank> lost = {});

}  // namespace shardwire
SHARDWIRE_API_END
