// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "memory/cuda/allocation.hpp"
#include "memory/cuda/platform.hpp"

// CUDA's support for NICs that access device memory directly (GPUDirect RDMA).
namespace shardwire::memory::cuda {

struct NicAccess {
  bool possible = false;  ///< and their writes can be waited for
  bool dma_buf = false;
  bool ordered = false;  ///< their writes are visible without waiting
};
NicAccess nic_access(Platform& platform, int device);

/// Whether the device's primary context exists in this process.
bool has_context(Platform& platform, int device);
/// Makes copies to and from these chunks synchronous where CUDA would otherwise return before they have ended. Chunks
/// without this attribute are left unchanged.
void synchronise_copies(Platform& platform, const std::vector<Chunk>& chunks);
/// Waits until the device of the current context sees the NICs' writes.
void flush_writes(Platform& platform);

}  // namespace shardwire::memory::cuda
