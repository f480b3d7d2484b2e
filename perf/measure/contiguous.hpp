// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// A case of the same ranks in which each target rank wants as many bytes from each source rank, its own process
/// included, as it reads in `job`, but as one tensor per pair: contiguous on both sides.
/// Errors: throws Error{layout_mismatch} if a region of `job` has no holder.
Case contiguous_case(const Setup& setup, const Case& job);

}  // namespace shardwire::perf
