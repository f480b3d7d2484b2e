// SPDX-License-Identifier: Apache-2.0
#include "session/arena_table.hpp"

#include <chrono>

namespace shardwire {

std::shared_ptr<detail::ArenaState> ArenaTable::allocate(ByteCount bytes) {
  const auto begin = std::chrono::steady_clock::now();
  auto arena = std::make_shared<detail::ArenaState>(fabric_, fabric_->allocate(bytes));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  registration_.bytes += bytes;
  registration_.seconds += took.count();
  std::erase_if(by_address_, [](const auto& entry) { return entry.second.expired(); });
  if (bytes > 0) by_address_[arena->region().bytes().data()] = arena;
  return arena;
}

std::shared_ptr<detail::ArenaState> ArenaTable::find(const void* data, ByteCount bytes) const {
  const auto* first = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  auto after = by_address_.upper_bound(first);
  if (after == by_address_.begin()) return nullptr;
  auto arena = (--after)->second.lock();
  if (!arena) return nullptr;
  const auto offset = static_cast<ByteCount>(first - after->first);
  const ByteCount size = arena->region().bytes().size();
  return offset <= size && bytes <= size - offset ? arena : nullptr;
}

ArenaTable::Registration ArenaTable::registration() const {
  const std::lock_guard lock(mutex_);
  return registration_;
}

// --- the public handle ---

Arena::Arena() = default;
Arena::~Arena() = default;
Arena::Arena(Arena&&) noexcept = default;
Arena& Arena::operator=(Arena&&) noexcept = default;
Arena::Arena(std::shared_ptr<detail::ArenaState> state) : state_(std::move(state)) {
}

std::byte* Arena::data() const {
  return state_ ? state_->region().bytes().data() : nullptr;
}
ByteCount Arena::size_bytes() const {
  return state_ ? state_->region().bytes().size() : 0;
}

}  // namespace shardwire
