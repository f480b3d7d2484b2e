// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "memory/copy_queue.hpp"
#include "shardwire/types.hpp"

namespace shardwire::move {

class StagingPool;

/// One slot of a pool; goes back when destroyed. Must not outlive the pool's owner's last use of it: the pool's memory is
/// shared with every slot, so a slot may outlive the pool object itself.
class Slot {
 public:
  Slot() = default;
  ~Slot();
  Slot(Slot&& other) noexcept;
  Slot& operator=(Slot&& other) noexcept;

  [[nodiscard]] std::span<std::byte> bytes() const;
  /// As of memory::QueuedCopy.
  [[nodiscard]] int place() const;
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  friend class StagingPool;
  struct Memory;
  Slot(std::shared_ptr<Memory> memory, std::size_t index) : memory_(std::move(memory)), index_(index) {}
  std::shared_ptr<Memory> memory_;  // owners: the pool and every slot in flight
  std::size_t index_ = 0;
};

/// Bounded staging: equal slots, made on first use, never more bytes than the budget.
/// Threads: one thread at a time.
class StagingPool {
 public:
  /// Slots of at most `slot_bytes`; smaller when the budget is. Requires: budget_bytes > 0.
  StagingPool(ByteCount budget_bytes, ByteCount slot_bytes);

  [[nodiscard]] ByteCount slot_bytes() const;
  [[nodiscard]] ByteCount budget_bytes() const { return budget_bytes_; }
  /// Most bytes that were in slots handed out at one time.
  [[nodiscard]] ByteCount peak_bytes() const;
  void forget_peak();
  /// Gives memory of free slots back, down to `keep_bytes` of it. They are made again when they are needed.
  void trim(ByteCount keep_bytes);
  [[nodiscard]] std::size_t free_slots() const;
  /// An empty slot object when all are in use. Pinned memory does for it too.
  Slot acquire();
  /// What is told when pinned memory has been made, or why it cannot be.
  using Made = std::function<void(const std::exception_ptr& error)>;
  /// A slot of pinned memory. An empty slot object when all are in use, or none is at hand: then `copies` make one, one at a time,
  /// and `made` runs inside their poll(), whatever becomes of the pool. Free memory of another kind makes way, so that both
  /// together stay inside the budget. While there are pinned slots in use, one more that cannot be made is no error: those have
  /// to do.
  /// Errors: as CopyQueue::make_pinned().
  Slot acquire_pinned(memory::CopyQueue& copies, Made made);

 private:
  Slot hand_out(std::size_t index);

  ByteCount budget_bytes_;
  std::shared_ptr<Slot::Memory> memory_;  // owners: see Slot
};

}  // namespace shardwire::move
