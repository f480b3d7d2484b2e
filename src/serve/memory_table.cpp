// SPDX-License-Identifier: Apache-2.0
#include "serve/memory_table.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "memory/device_events.hpp"

namespace shardwire {

namespace detail {

namespace {

// Advises whole pages only: a partial page also holds memory of others.
void advise(std::span<std::byte> bytes, int advice) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = (first + page - 1) / page * page;
  const std::uintptr_t end = (first + bytes.size()) / page * page;
  if (begin < end) static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, advice));
}

}  // namespace

RegisteredMemory::RegisteredMemory(std::shared_ptr<Fabrics> fabrics, Regions regions, const transport::Memory& memory,
                                   Owner owner, TensorPlace place)
    : fabrics_(std::move(fabrics)),
      regions_(std::move(regions)),
      memory_(memory),
      memory_owner_(owner),
      place_(std::move(place)) {
  if (memory_owner_ == Owner::session) advise(memory_.span(), MADV_DONTFORK);
}

RegisteredMemory::RegisteredMemory(std::shared_ptr<Fabrics> fabrics, Regions regions, const transport::Memory& memory,
                                   std::unique_ptr<memory::DeviceMemory> owned)
    : fabrics_(std::move(fabrics)),
      on_device_(std::move(owned)),
      regions_(std::move(regions)),
      memory_(memory),
      memory_owner_(Owner::session) {
}

RegisteredMemory::RegisteredMemory(std::shared_ptr<Fabrics> fabrics, Regions regions,
                                   std::shared_ptr<memory::SharedMemory> shared)
    : fabrics_(std::move(fabrics)),
      shared_(std::move(shared)),
      regions_(std::move(regions)),
      memory_{shared_->address(), shared_->bytes(), {}},
      memory_owner_(Owner::session) {
  advise(memory_.span(), MADV_DONTFORK);
}

RegisteredMemory::~RegisteredMemory() {
  if (!owner_.is_this()) {  // the fabrics' locks and threads belong to the parent process
    static_cast<void>(new Regions(std::move(regions_)));
    static_cast<void>(on_device_.release());
    static_cast<void>(new auto(std::move(shared_)));
    static_cast<void>(new std::shared_ptr<Fabrics>(std::move(fabrics_)));
    return;
  }
  if (memory_owner_ == Owner::session && !on_device_)
    advise(memory_.span(), MADV_DOFORK);  // the allocator may reuse these pages
}

std::shared_ptr<const transport::Region> RegisteredMemory::region(std::size_t fabric) const {
  const std::lock_guard lock(mutex_);
  return regions_[fabric];
}

void RegisteredMemory::withdraw() {
  Regions gone;
  {
    const std::lock_guard lock(mutex_);
    gone = std::exchange(regions_, Regions(regions_.size()));
    withdrawn_ = true;
  }
  if (!owner_.is_this()) static_cast<void>(new Regions(std::move(gone)));
}

ByteCount RegisteredMemory::discard(ByteCount offset_bytes, ByteCount bytes) {
  if (offset_bytes > memory_.bytes || bytes > memory_.bytes - offset_bytes) {
    throw Error(ErrorCode::invalid_argument, "the range to be discarded is not inside of the arena");
  }
  const std::lock_guard lock(mutex_);
  const auto shown = [](const auto& region) { return region && !region->key().empty(); };
  if (std::ranges::count_if(regions_, shown) != 1) return 0;
  return (*std::ranges::find_if(regions_, shown))->discard(offset_bytes, bytes);
}

bool RegisteredMemory::holds(ByteCount offset_bytes, ByteCount bytes) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(regions_,
                             [&](const auto& region) { return !region || region->holds(offset_bytes, bytes); });
}

bool RegisteredMemory::withdrawn() const {
  const std::lock_guard lock(mutex_);
  return withdrawn_;
}

}  // namespace detail

using detail::RegisteredMemory;
using detail::RegistrationState;

namespace {

/// Makes fabrics adopt memory that another fabric, or the caller, owns. Undone completely on failure. `wanted(fabric)`:
/// whether to adopt; fabrics that do not support such memory skip it.
template <typename Wanted>
void adopt(const Fabrics& fabrics, const transport::Memory& memory, RegisteredMemory::Regions& regions, Wanted wanted) {
  for (std::size_t i = 0; i < fabrics.size(); ++i) {
    if (regions[i] || !wanted(i)) continue;
    try {
      regions[i] = fabrics[i].adopt(memory);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
    }
  }
}

}  // namespace

template <typename Make>
auto MemoryTable::timed(ByteCount bytes, Make make) {
  const auto begin = std::chrono::steady_clock::now();
  auto made = make();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  registration_.bytes += bytes;
  registration_.seconds += took.count();
  std::erase_if(by_address_, [](const auto& entry) { return entry.second.memory.expired(); });
  return made;
}

std::shared_ptr<RegisteredMemory> MemoryTable::allocate_unlisted(ByteCount bytes) const {
  RegisteredMemory::Regions regions(fabrics_->size());
  std::size_t first = 0;  // any, if none can be mapped
  for (std::size_t i = fabrics_->size(); i > 0; --i) {
    if (fabrics_->row(i - 1).preference.map != 0) first = i - 1;
  }
  regions[first] = (*fabrics_)[first].allocate(bytes);
  const transport::Memory memory = regions[first]->memory();
  if (bytes > 0) adopt(*fabrics_, memory, regions, [](std::size_t) { return true; });
  return std::make_shared<RegisteredMemory>(fabrics_, std::move(regions), memory, RegisteredMemory::Owner::session);
}

std::shared_ptr<RegisteredMemory> MemoryTable::adopt_shared(std::shared_ptr<memory::SharedMemory> shared) const {
  RegisteredMemory::Regions regions(fabrics_->size());
  for (std::size_t i = 0; i < fabrics_->size() && shared->bytes() > 0; ++i) {
    try {
      regions[i] = (*fabrics_)[i].adopt_shared(shared);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
    }
  }
  return std::make_shared<RegisteredMemory>(fabrics_, std::move(regions), std::move(shared));
}

std::shared_ptr<RegisteredMemory> MemoryTable::allocate(ByteCount bytes) {
  auto arena = timed(bytes, [&] { return allocate_unlisted(bytes); });
  const std::lock_guard lock(mutex_);
  if (bytes > 0) insert(arena, {});
  return arena;
}

std::shared_ptr<RegisteredMemory> MemoryTable::allocate_on_device(ByteCount bytes, int device) {
  const memory::FoundRuntime found = memory::device_runtime();
  if (!found.runtime) {
    throw Error(ErrorCode::unsupported, "no arena on a device, there is none: " + found.why_not);
  }
  auto arena = timed(bytes, [&] {
    auto owned = found.runtime->allocate(device, std::max<ByteCount>(bytes, 1));  // fails for an unknown device
    const auto stream = found.runtime->open_stream(device);
    stream->clear(owned->address(), owned->bytes());
    memory::wait_until_done(*stream);
    const transport::Memory memory{owned->address(), bytes, {MemoryKind::cuda, device}};
    RegisteredMemory::Regions regions(fabrics_->size());
    if (bytes > 0) adopt(*fabrics_, memory, regions, [](std::size_t) { return true; });
    return std::make_shared<RegisteredMemory>(fabrics_, std::move(regions), memory, std::move(owned));
  });
  const std::lock_guard lock(mutex_);
  if (bytes > 0) insert(arena, {});
  return arena;
}

std::shared_ptr<RegistrationState> MemoryTable::add(const transport::Memory& memory, const TensorPlace& place) {
  {
    const std::lock_guard lock(mutex_);
    const Known* known = around(memory.address, memory.bytes);
    if (auto registration = known != nullptr ? known->registration.lock() : nullptr) return registration;
    const auto arena = known != nullptr ? known->memory.lock() : nullptr;
    if (arena && arena->is_arena()) return std::make_shared<RegistrationState>(arena);
  }
  auto registration = timed(memory.bytes, [&] {
    RegisteredMemory::Regions regions(fabrics_->size());
    adopt(*fabrics_, memory, regions, [](std::size_t) { return true; });
    return std::make_shared<RegistrationState>(std::make_shared<RegisteredMemory>(
        fabrics_, std::move(regions), memory, RegisteredMemory::Owner::caller, place));
  });
  const std::lock_guard lock(mutex_);
  insert(registration->memory(), registration);
  return registration;
}

std::shared_ptr<RegisteredMemory> MemoryTable::adopt_unasked(const transport::Memory& memory) {
  RegisteredMemory::Regions regions(fabrics_->size());
  adopt(*fabrics_, memory, regions,
        [&](std::size_t fabric) { return (*fabrics_)[fabric].adopts_unasked(memory.place); });
  if (std::none_of(regions.begin(), regions.end(), [](const auto& region) { return region != nullptr; }))
    return nullptr;
  return std::make_shared<RegisteredMemory>(fabrics_, std::move(regions), memory, RegisteredMemory::Owner::caller);
}

void MemoryTable::insert(const std::shared_ptr<RegisteredMemory>& memory, std::weak_ptr<RegistrationState> handle) {
  const ByteCount bytes = memory->memory().bytes;
  longest_bytes_ = std::max(longest_bytes_, bytes);
  by_address_.emplace(memory->memory().address, Known{bytes, memory, std::move(handle)});
}

// The nearest range that begins before `data` may be the wrong one: it may lie inside a longer one, or be withdrawn.
const MemoryTable::Known* MemoryTable::around(const void* data, ByteCount bytes) const {
  const auto* first = static_cast<const std::byte*>(data);
  for (auto next = by_address_.upper_bound(first); next != by_address_.begin();) {
    const auto& [begin, known] = *--next;
    const auto offset = static_cast<ByteCount>(first - begin);
    if (offset > longest_bytes_) break;
    if (offset > known.bytes || bytes > known.bytes - offset) continue;
    const auto memory = known.memory.lock();
    if (memory && !memory->withdrawn() && memory->is_there()) return &known;
  }
  return nullptr;
}

std::shared_ptr<RegisteredMemory> MemoryTable::find(const void* data, ByteCount bytes) const {
  const std::lock_guard lock(mutex_);
  const Known* known = around(data, bytes);
  return known == nullptr ? nullptr : known->memory.lock();
}

MemoryTable::Registration MemoryTable::registration() const {
  const std::lock_guard lock(mutex_);
  return registration_;
}

}  // namespace shardwire
