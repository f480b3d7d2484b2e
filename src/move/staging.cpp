// SPDX-License-Identifier: Apache-2.0
#include "move/staging.hpp"

#include <algorithm>
#include <utility>

namespace shardwire::move {

struct Slot::Memory {
  ByteCount slot_bytes = 0;
  std::size_t slots = 0;
  std::size_t in_use = 0;
  std::size_t peak = 0;
  std::vector<std::unique_ptr<std::byte[]>> made;  // grows on first use; uninitialised memory
  std::vector<std::size_t> free;                   // indices into `made`
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
  return {memory_->made[index_].get(), static_cast<std::size_t>(memory_->slot_bytes)};
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

Slot StagingPool::acquire() {
  if (memory_->in_use == memory_->slots) return {};
  std::size_t index = 0;
  if (memory_->free.empty()) {
    index = memory_->made.size();
    memory_->made.push_back(std::make_unique_for_overwrite<std::byte[]>(memory_->slot_bytes));
  } else {
    index = memory_->free.back();
    memory_->free.pop_back();
    auto& memory = memory_->made[index];
    if (!memory) memory = std::make_unique_for_overwrite<std::byte[]>(memory_->slot_bytes);
  }
  memory_->peak = std::max(memory_->peak, ++memory_->in_use);
  return {memory_, index};
}

}  // namespace shardwire::move
