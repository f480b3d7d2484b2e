// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "memory/copier.hpp"
#include "memory/copy_queue.hpp"
#include "memory/device.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory {

/// Pinned host memory: slots of one size within a budget, and single allocations. The copier's threads allocate and
/// free it, since both take milliseconds and freeing waits for devices.
/// Threads: one thread at a time; memory from here must also be released on it.
class PinnedPool {
 public:
  using Slot = std::shared_ptr<DeviceMemory>;  // owners: this, or the copy that uses it
  /// Runs when take() may return another result. `error`: why there is no slot at all.
  using Changed = std::function<void(const std::exception_ptr& error)>;

  /// `changed` runs inside the copier's poll(), or inside take() if the copier accepts no job.
  /// Ownership: the copier is borrowed. Requires: budget_bytes > 0.
  PinnedPool(Copier& copier, ByteCount budget_bytes, Changed changed);
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// A free slot. Null: all are in use; if the budget allows, the copier then creates another one.
  Slot take();
  void give_back(Slot slot);
  /// Memory outside the budget. `done` runs inside the copier's poll(). Errors: as Copier::submit().
  void make(ByteCount bytes, MadePinned done);
  /// From now on memory is freed by the thread that releases it. Call it before the copier ends.
  void stop();

  [[nodiscard]] ByteCount slot_bytes() const { return slot_bytes_; }
  /// Current size of all slots.
  [[nodiscard]] ByteCount bytes() const { return slots_made_ * slot_bytes_; }

 private:
  void make_slot();
  void made(Slot slot, const std::exception_ptr& error);

  Copier& copier_;
  Changed changed_;
  std::shared_ptr<Copier*> freed_by_;  // null inside after stop(); owners: this and pinned memory
  ByteCount slot_bytes_;
  std::size_t max_slots_;
  std::size_t slots_made_ = 0;
  bool making_slot_ = false;
  std::vector<Slot> free_slots_;
};

}  // namespace shardwire::memory
