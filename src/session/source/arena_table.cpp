// SPDX-License-Identifier: Apache-2.0
#include "session/source/arena_table.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>

#include "session/handle.hpp"

namespace shardwire {

namespace detail {

namespace {

// Whole pages only: what shares a page with the region is somebody else's.
void advise(std::span<std::byte> bytes, int advice) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = (first + page - 1) / page * page;
  const std::uintptr_t end = (first + bytes.size()) / page * page;
  if (begin < end) static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, advice));
}

}  // namespace

ArenaState::ArenaState(std::shared_ptr<transport::Fabric> fabric, std::unique_ptr<transport::Region> region)
    : fabric_(std::move(fabric)), region_(std::move(region)) {
  advise(region_->memory().span(), MADV_DONTFORK);
}

ArenaState::~ArenaState() {
  if (!owner_.is_this()) {  // the fabric's locks and threads are the parent's
    static_cast<void>(region_.release());
    static_cast<void>(new std::shared_ptr<transport::Fabric>(std::move(fabric_)));
    return;
  }
  advise(region_->memory().span(), MADV_DOFORK);  // the allocator may use these pages again
}

}  // namespace detail

std::shared_ptr<detail::ArenaState> ArenaTable::allocate(ByteCount bytes) {
  const auto begin = std::chrono::steady_clock::now();
  auto arena = std::make_shared<detail::ArenaState>(fabric_, fabric_->allocate(bytes));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  registration_.bytes += bytes;
  registration_.seconds += took.count();
  std::erase_if(by_address_, [](const auto& entry) { return entry.second.expired(); });
  if (bytes > 0) by_address_[arena->region().memory().address] = arena;
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
  const ByteCount size = arena->region().memory().bytes;
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
  return detail::checked(state_, "arena").region().memory().address;
}
ByteCount Arena::size_bytes() const {
  return detail::checked(state_, "arena").region().memory().bytes;
}

}  // namespace shardwire
