// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/nic_access.hpp"

#include "memory/cuda/status.hpp"

namespace shardwire::memory::cuda {
namespace {

CUdevice handle_of(Platform& platform, int device) {
  CUdevice handle{};
  platform.check(platform.api().device_get(&handle, device), "cuDeviceGet");
  return handle;
}

// A driver that does not know the attribute lacks the feature.
int attribute(Platform& platform, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  const CUresult status = platform.api().device_attribute(&value, which, device);
  if (status == CUDA_ERROR_INVALID_VALUE) return 0;
  platform.check(status, "cuDeviceGetAttribute");
  return value;
}

}  // namespace

NicAccess nic_access(Platform& platform, int device) {
  const CUdevice handle = handle_of(platform, device);
  NicAccess access;
  access.ordered = attribute(platform, handle, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
                   CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
  const int flushes = attribute(platform, handle, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
  access.possible = attribute(platform, handle, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0 &&
                    (access.ordered || (flushes & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0);
  access.dma_buf = attribute(platform, handle, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0;
  return access;
}

bool has_context(Platform& platform, int device) {
  unsigned flags = 0;
  int active = 0;
  const CUdevice handle = handle_of(platform, device);
  platform.check(platform.api().primary_context_get_state(handle, &flags, &active), "cuDevicePrimaryCtxGetState");
  return active != 0;
}

void synchronise_copies(Platform& platform, const std::vector<Chunk>& chunks) {
  const unsigned on = 1;
  for (const Chunk& chunk : chunks) {
    const CUresult status = platform.api().pointer_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, chunk.start);
    if (is_sticky(status)) platform.check(status, "cuPointerSetAttribute");
  }
}

void flush_writes(Platform& platform) {
  platform.check(platform.api().flush_remote_writes(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
                 "cuFlushGPUDirectRDMAWrites");
}

}  // namespace shardwire::memory::cuda
