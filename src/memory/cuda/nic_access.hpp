// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "memory/cuda/allocation.hpp"
#include "memory/cuda/platform.hpp"

// What CUDA has for NICs that read and write memory of devices by themselves (GPUDirect RDMA).
namespace shardwire::memory::cuda {

struct NicAccess {
  bool possible = false;  ///< and what they write can be waited for
  bool dma_buf = false;
  bool ordered = false;  ///< what they have written is seen without waiting
};
NicAccess nic_access(Platform& platform, int device);

/// Whether anybody in this process has the device's primary context.
bool has_context(Platform& platform, int device);
/// Copies into and out of these, where CUDA would otherwise let the caller go before they have ended, end first. Chunks that know no
/// such thing stay as they are.
void synchronise_copies(Platform& platform, const std::vector<Chunk>& chunks);
/// Waits until the device of the current context sees what NICs have written to it.
void flush_writes(Platform& platform);

}  // namespace shardwire::memory::cuda
