// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/work_blocks.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "memory/cuda/allocate.hpp"

namespace shardwire::memory::cuda {
namespace {

constexpr ByteCount min_block_bytes = 64u << 10;
// Number of blocks kept for tables that may recur.
constexpr std::size_t max_kept_blocks = 64;
constexpr ByteCount max_kept_bytes = 16u << 20;

// Rounded up, to limit the number of sizes.
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

bool WorkBlocks::keeps_all_with(ByteCount more_bytes) const {
  return blocks_.size() < max_kept_blocks && host_bytes_ + more_bytes <= max_kept_bytes;
}

WorkBlock& WorkBlocks::use(std::list<WorkBlock>::iterator block) {
  block->recorded = false;
  blocks_.splice(blocks_.end(), blocks_, block);
  return *block;
}

// Compares whole tables: an equal table does the same work, regardless of its user and of the current memory contents.
WorkBlock* WorkBlocks::find(const CopyTable& table, ByteCount host_bytes, ByteCount device_bytes) {
  const std::span<const std::byte> bytes = table.bytes();
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    const bool has_room = block->host_bytes >= host_bytes && block->device_bytes >= device_bytes;
    if (!has_room || block->table != table.size()) continue;
    if (std::memcmp(block->host.get(), bytes.data(), bytes.size()) == 0) return &use(block);
  }
  return nullptr;
}

WorkBlock& WorkBlocks::take(ByteCount host_bytes, ByteCount device_bytes) {
  const ByteCount host = rounded(host_bytes);
  const bool keeps_tables = keeps_all_with(host);
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    if (keeps_tables && block->table != TableView::Size{}) continue;
    if (block->host_bytes >= host_bytes && block->device_bytes >= device_bytes && is_free(*block)) {
      block->table = {};
      return use(block);
    }
  }
  const ByteCount device = rounded(device_bytes);
  WorkBlock block{.host = allocate_on_host(platform_, host),
                  .device = allocate_on_device(platform_, device),
                  .done = {nullptr, {&platform_.api()}},
                  .host_bytes = host,
                  .device_bytes = device};
  cudaEvent_t done = nullptr;
  platform_.check(platform_.api().event_create(&done, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  block.done.reset(done);
  blocks_.push_back(std::move(block));
  host_bytes_ += host;
  return blocks_.back();
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
