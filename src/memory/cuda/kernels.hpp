// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "memory/device_copy/table.hpp"
#include "memory/device_copy/value_box.hpp"
#include "memory/digest.hpp"

// Launched on the device of the current context. They return the launch status of cudaGetLastError().
namespace shardwire::memory::cuda {

cudaError_t launch_copy(const TableView& table, cudaStream_t stream);
cudaError_t launch_digest(const TableView& table, Digest128* leaves, Digest128* digests, cudaStream_t stream);
cudaError_t launch_fill(const ValueView& values, cudaStream_t stream);
cudaError_t launch_count_wrong(const ValueView& values, std::uint64_t* wrong, cudaStream_t stream);

}  // namespace shardwire::memory::cuda
