// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/work_blocks.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "memory/cuda/allocate.hpp"

namespace shardwire::memory::cuda {
namespace {

constexpr ByteCount min_block_bytes = 64u << 10;

// Rounded up, so that few sizes come up.
ByteCount rounded(ByteCount bytes) {
  return std::bit_ceil(std::max(bytes, min_block_bytes));
}

}  // namespace

bool WorkBlocks::is_free(const WorkBlock& block) {
  if (!block.recorded) return false;
  const cudaError_t status = platform_.api().event_query(block.done.get());
  if (status == cudaErrorNotReady) return false;
  platform_.check(status, "cudaEventQuery");
  return true;
}

WorkBlock& WorkBlocks::take(ByteCount host_bytes, ByteCount device_bytes) {
  for (WorkBlock& block : blocks_) {
    if (block.host_bytes < host_bytes || block.device_bytes < device_bytes || !is_free(block)) continue;
    block.recorded = false;
    return block;
  }
  const ByteCount host = rounded(host_bytes);
  const ByteCount device = rounded(device_bytes);
  WorkBlock block{.host = allocate_on_host(platform_, host),
                  .device = allocate_on_device(platform_, device),
                  .done = {nullptr, {&platform_.api()}},
                  .host_bytes = host,
                  .device_bytes = device};
  cudaEvent_t done = nullptr;
  platform_.check(platform_.api().event_create(&done, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  block.done.reset(done);
  return blocks_.emplace_back(std::move(block));
}

void WorkBlocks::give_back(WorkBlock& block, cudaStream_t stream) {
  platform_.check(platform_.api().event_record(block.done.get(), stream), "cudaEventRecord");
  block.recorded = true;
}

void WorkBlocks::abandon() {
  for (WorkBlock& block : blocks_) {
    (void)block.host.release();
    (void)block.device.release();
    (void)block.done.release();
  }
  blocks_.clear();
}

}  // namespace shardwire::memory::cuda
