// SPDX-License-Identifier: Apache-2.0
#include "memory/pinned_pool.hpp"

#include <algorithm>
#include <utility>

namespace shardwire::memory {
namespace {

// Two per direction: one is filled while the other is emptied.
constexpr std::size_t enough_slots = 4;

/// Memory that a copier's thread frees while the copier exists.
class FreedByCopier final : public DeviceMemory {
 public:
  FreedByCopier(std::shared_ptr<DeviceMemory> memory, std::shared_ptr<Copier*> copier)
      : memory_(std::move(memory)), copier_(std::move(copier)) {}
  ~FreedByCopier() override {
    if (*copier_ == nullptr) return;
    try {
      (*copier_)->submit([memory = std::move(memory_)] {}, nullptr);  // a job releases its captures on its thread
    } catch (const std::exception&) {
      return;
    }
  }
  FreedByCopier(const FreedByCopier&) = delete;
  FreedByCopier& operator=(const FreedByCopier&) = delete;

  [[nodiscard]] std::byte* address() const override { return memory_->address(); }
  [[nodiscard]] ByteCount bytes() const override { return memory_->bytes(); }

 private:
  std::shared_ptr<DeviceMemory> memory_;  // owners: this, then the job
  std::shared_ptr<Copier*> copier_;       // owners: the pool and all memory from it
};

}  // namespace

PinnedPool::PinnedPool(Copier& copier, ByteCount budget_bytes, Changed changed)
    : copier_(copier),
      changed_(std::move(changed)),
      freed_by_(std::make_shared<Copier*>(&copier)),
      slot_bytes_(std::max<ByteCount>(1, budget_bytes / enough_slots)),
      max_slots_(static_cast<std::size_t>(budget_bytes / slot_bytes_)) {
}

PinnedPool::~PinnedPool() {
  stop();
}

void PinnedPool::stop() {
  *freed_by_ = nullptr;
}

PinnedPool::Slot PinnedPool::take() {
  if (free_slots_.empty()) {
    make_slot();
    return nullptr;
  }
  Slot slot = std::move(free_slots_.back());
  free_slots_.pop_back();
  return slot;
}

void PinnedPool::give_back(Slot slot) {
  free_slots_.push_back(std::move(slot));
}

void PinnedPool::make(ByteCount bytes, MadePinned done) {
  const auto memory = std::make_shared<std::unique_ptr<DeviceMemory>>();  // owners: the job and its completion
  copier_.submit([memory, bytes] { *memory = require_device_runtime()->allocate_host(bytes); },
                 [memory, freed_by = freed_by_, done = std::move(done)](const std::exception_ptr& error) {
                   if (error) return done(nullptr, error);
                   done(std::make_unique<FreedByCopier>(std::move(*memory), freed_by), nullptr);
                 });
}

void PinnedPool::make_slot() {
  if (making_slot_ || slots_made_ == max_slots_) return;
  making_slot_ = true;
  try {
    make(slot_bytes_, [this](Slot slot, const std::exception_ptr& error) { made(std::move(slot), error); });
  } catch (const std::exception&) {
    made(nullptr, std::current_exception());
  }
}

void PinnedPool::made(Slot slot, const std::exception_ptr& error) {
  making_slot_ = false;
  if (slot) {
    ++slots_made_;
    free_slots_.push_back(std::move(slot));
  } else if (slots_made_ > 0) {
    max_slots_ = slots_made_;  // continue with these
  }
  changed_(slots_made_ == 0 ? error : nullptr);
}

}  // namespace shardwire::memory
