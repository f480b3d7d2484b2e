// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "memory/strided_copy.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory::cuda {

/// One call of the copy engine: rows of run_bytes(), source_step() and target_step() apart.
struct EngineCall {
  ByteCount source_offset = 0;
  ByteCount target_offset = 0;
  ByteCount rows = 0;

  bool operator==(const EngineCall&) const = default;
};

/// The copy engine's calls for a copy. Empty if a kernel should copy instead: runs are shorter than `min_run_bytes`, or
/// many calls would be needed.
std::vector<EngineCall> engine_calls(const StridedCopy& copy, ByteCount min_run_bytes);

}  // namespace shardwire::memory::cuda
