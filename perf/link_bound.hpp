// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/plan.hpp"

namespace shardwire::perf {

/// Bytes that the most loaded link (out of one source rank, or into one target rank) carries at least, whichever holders
/// the pieces are read from: for any set of sources, what only they hold, spread over them evenly.
double link_bound(Planner& planner);

}  // namespace shardwire::perf
