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

/// One slot of a pool; returns to the pool when destroyed. A slot may outlive the pool object, since it shares
/// ownership of the pool's memory.
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

/// Bounded staging: equal slots, created on first use, never more bytes than the budget.
/// Threads: one thread at a time.
class StagingPool {
 public:
  /// Slots of at most `slot_bytes`; smaller if the budget is. Requires: budget_bytes > 0.
  StagingPool(ByteCount budget_bytes, ByteCount slot_bytes);

  [[nodiscard]] ByteCount slot_bytes() const;
  [[nodiscard]] ByteCount budget_bytes() const { return budget_bytes_; }
  /// Maximum bytes in slots handed out at one time.
  [[nodiscard]] ByteCount peak_bytes() const;
  void forget_peak();
  /// Frees memory of free slots, down to `keep_bytes` of it. Slots are created again on demand.
  void trim(ByteCount keep_bytes);
  [[nodiscard]] std::size_t free_slots() const;
  [[nodiscard]] std::size_t used_slots() const;
  /// An empty slot object if all are in use. May return pinned memory.
  Slot acquire();
  /// Called when pinned memory has been created, or with the reason why it cannot be.
  using Made = std::function<void(const std::exception_ptr& error)>;
  /// A slot of pinned memory. An empty slot object if all are in use, or if none is available: `copies` then creates
  /// slots, one at a time, and calls `made` inside their poll(), whatever happens to the pool. Free memory of another
  /// kind is freed for it, so that both together stay inside the budget. If a further slot cannot be created while
  /// other pinned slots are in use, that is no error: those are used.
  /// Errors: as CopyQueue::make_pinned().
  Slot acquire_pinned(memory::CopyQueue& copies, Made made);

 private:
  Slot hand_out(std::size_t index);

  ByteCount budget_bytes_;
  std::shared_ptr<Slot::Memory> memory_;  // owners: see Slot
};

}  // namespace shardwire::move
