// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// A case of the same ranks in which each target rank wants as many bytes of each source rank as it reads of it in `job`, its
/// own process included, but as one tensor for each pair: contiguous on both sides.
/// Errors: throws Error{layout_mismatch} where a region of `job` has no holder.
Case contiguous_case(const Setup& setup, const Case& job);

}  // namespace shardwire::perf
