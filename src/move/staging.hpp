// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shardwire/types.hpp"

namespace shardwire::move {

class StagingPool;

/// What a slot is made of.
enum class SlotKind : std::uint8_t {
  ordinary,
  pinned,  ///< devices can copy from and into it: memory of the process's device runtime
};

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
  /// An empty slot object when all are in use. Free memory of another kind makes way, so that both together stay inside the
  /// budget. Errors: a pinned slot that cannot be made throws as DeviceRuntime::allocate_host() does, or Error{unsupported}
  /// where there is no runtime.
  Slot acquire(SlotKind kind = SlotKind::ordinary);

 private:
  ByteCount budget_bytes_;
  std::shared_ptr<Slot::Memory> memory_;  // owners: see Slot
};

}  // namespace shardwire::move
