// SPDX-License-Identifier: Apache-2.0
#include "move/staging.hpp"

#include <algorithm>
#include <utility>

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

    [[nodiscard]] std::byte* address() const { return pinned ? pinned->address() : ordinary.get(); }
    void reset() {
      ordinary.reset();
      pinned.reset();
    }
  };
  std::vector<Piece> made;        // grows on first use
  std::vector<std::size_t> free;  // indices into `made`
  bool making_pinned = false;     // for an index in neither list
  bool pinned_is_short = false;   // no more can be made

  [[nodiscard]] bool is_full() const { return in_use + (making_pinned ? 1 : 0) == slots; }
  [[nodiscard]] bool has_pinned() const {
    return std::ranges::any_of(made, [](const Piece& piece) { return piece.pinned != nullptr; });
  }
  /// An index for a slot, the last suitable one. Requires: !is_full().
  template <typename Suits>
  std::size_t take(Suits suits) {
    const auto fitting =
        std::find_if(free.rbegin(), free.rend(), [&](std::size_t index) { return suits(made[index]); });
    if (fitting != free.rend()) {
      std::swap(*fitting, free.back());
    } else if (made.size() < slots) {
      free.push_back(made.size());
      made.emplace_back();
    }
    const std::size_t index = free.back();
    free.pop_back();
    return index;
  }
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
  // Copies on other threads look up slots while further ones are made: the list must not be reallocated.
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
  return memory_->slots - memory_->in_use - (memory_->making_pinned ? 1 : 0);
}

std::size_t StagingPool::used_slots() const {
  return memory_->in_use;
}

Slot StagingPool::hand_out(std::size_t index) {
  memory_->peak = std::max(memory_->peak, ++memory_->in_use);
  return {memory_, index};
}

Slot StagingPool::acquire() {
  if (memory_->is_full()) return {};
  const std::size_t index = memory_->take([](const auto& piece) { return piece.address() != nullptr; });
  auto& piece = memory_->made[index];
  try {
    if (piece.address() == nullptr) piece.ordinary = std::make_unique_for_overwrite<std::byte[]>(memory_->slot_bytes);
  } catch (...) {
    memory_->free.push_back(index);
    throw;
  }
  return hand_out(index);
}

Slot StagingPool::acquire_pinned(memory::CopyQueue& copies, Made made) {
  if (memory_->is_full()) return {};
  const auto is_pinned = [](const auto& piece) { return piece.pinned != nullptr; };
  const bool at_hand =
      std::ranges::any_of(memory_->free, [&](std::size_t index) { return is_pinned(memory_->made[index]); });
  if (at_hand) return hand_out(memory_->take(is_pinned));
  if (memory_->making_pinned || (memory_->pinned_is_short && memory_->has_pinned())) return {};
  const std::size_t index = memory_->take([](const auto& piece) { return piece.address() == nullptr; });
  memory_->made[index].reset();
  memory_->making_pinned = true;
  const auto ended = [memory = memory_, index, made = std::move(made)](std::unique_ptr<memory::DeviceMemory> pinned,
                                                                       const std::exception_ptr& error) {
    memory->making_pinned = false;
    memory->made[index].pinned = std::move(pinned);
    memory->free.push_back(index);
    memory->pinned_is_short = error != nullptr;
    made(memory->pinned_is_short && memory->has_pinned() ? nullptr : error);
  };
  try {
    copies.make_pinned(memory_->slot_bytes, ended);
  } catch (...) {
    memory_->making_pinned = false;
    memory_->free.push_back(index);
    throw;
  }
  return {};
}

}  // namespace shardwire::move
