// SPDX-License-Identifier: Apache-2.0
#include "move/staging.hpp"

#include <algorithm>
#include <utility>

#include "memory/copy_queue.hpp"
#include "memory/device.hpp"
#include "shardwire/error.hpp"

namespace shardwire::move {

struct Slot::Memory {
  ByteCount slot_bytes = 0;
  std::size_t slots = 0;
  std::size_t in_use = 0;
  std::size_t peak = 0;
  struct Piece {
    std::unique_ptr<std::byte[]> ordinary;  // uninitialised memory
    std::unique_ptr<memory::DeviceMemory> pinned;

    [[nodiscard]] bool fits(SlotKind kind) const { return kind == SlotKind::pinned ? pinned != nullptr : !is_empty(); }
    [[nodiscard]] bool is_empty() const { return !ordinary && !pinned; }
    [[nodiscard]] std::byte* address() const { return pinned ? pinned->address() : ordinary.get(); }
    void reset() {
      ordinary.reset();
      pinned.reset();
    }
    void make(SlotKind kind, ByteCount bytes) {
      reset();
      if (kind == SlotKind::ordinary) {
        ordinary = std::make_unique_for_overwrite<std::byte[]>(bytes);
        return;
      }
      const memory::FoundRuntime found = memory::device_runtime();
      if (!found.runtime) throw Error(ErrorCode::unsupported, "no staging for device memory: " + found.why_not);
      pinned = found.runtime->allocate_host(bytes);
    }
  };
  std::vector<Piece> made;        // grows on first use
  std::vector<std::size_t> free;  // indices into `made`
};

Slot::~Slot() {
  if (memory_) {
    memory_->free.push_back(index_);
    --memory_->in_use;
  }
}

Slot::Slot(Slot&& other) noexcept : memory_(std::move(other.memory_)), index_(other.index_) {
}

Slot& Slot::operator=(Slot&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(index_, other.index_);
  return *this;
}

std::span<std::byte> Slot::bytes() const {
  return {memory_->made[index_].address(), static_cast<std::size_t>(memory_->slot_bytes)};
}

int Slot::place() const {
  return memory_->made[index_].pinned ? memory::on_pinned_host : memory::on_host;
}

StagingPool::StagingPool(ByteCount budget_bytes, ByteCount slot_bytes)
    : budget_bytes_(budget_bytes), memory_(std::make_shared<Slot::Memory>()) {
  memory_->slot_bytes = std::min(slot_bytes, budget_bytes);
  memory_->slots = static_cast<std::size_t>(budget_bytes / memory_->slot_bytes);
  // Copies on other threads look slots up while further ones are made: the list must stay where it is.
  memory_->made.reserve(memory_->slots);
}

ByteCount StagingPool::slot_bytes() const {
  return memory_->slot_bytes;
}

ByteCount StagingPool::peak_bytes() const {
  return memory_->peak * memory_->slot_bytes;
}

void StagingPool::trim(ByteCount keep_bytes) {
  ByteCount kept = 0;
  for (const std::size_t index : memory_->free) {
    if (kept + memory_->slot_bytes <= keep_bytes) {
      kept += memory_->slot_bytes;
    } else {
      memory_->made[index].reset();
    }
  }
}

void StagingPool::forget_peak() {
  memory_->peak = memory_->in_use;
}

std::size_t StagingPool::free_slots() const {
  return memory_->slots - memory_->in_use;
}

Slot StagingPool::acquire(SlotKind kind) {
  if (memory_->in_use == memory_->slots) return {};
  auto& free = memory_->free;
  auto& made = memory_->made;
  const auto fitting =
      std::find_if(free.rbegin(), free.rend(), [&](std::size_t index) { return made[index].fits(kind); });
  if (fitting != free.rend()) {
    std::swap(*fitting, free.back());
  } else if (made.size() < memory_->slots) {
    free.push_back(made.size());
    made.emplace_back();
  }
  const std::size_t index = free.back();
  if (!made[index].fits(kind)) made[index].make(kind, memory_->slot_bytes);
  free.pop_back();
  memory_->peak = std::max(memory_->peak, ++memory_->in_use);
  return {memory_, index};
}

}  // namespace shardwire::move
