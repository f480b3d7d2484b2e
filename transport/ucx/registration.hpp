// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/gpu_direct.hpp"
#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {

/// Any thread. `served`: with a key by which peers can read. Errors: as Fabric::allocate and Fabric::adopt. `gpus`:
/// knowledge about devices whose memory is adopted.
std::unique_ptr<Region> allocate_region(const std::shared_ptr<Worker>& worker, bool served, ByteCount size_bytes,
                                        const MemoryPlace& place);
std::unique_ptr<Region> adopt_region(const std::shared_ptr<Worker>& worker, bool served, const Memory& memory,
                                     GpuDirect& gpus);

}  // namespace shardwire::transport::ucx
