// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/registration.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "transport/bytes.hpp"
#include "transport/shm/memory_left.hpp"

namespace shardwire::transport::shm {
namespace {

using memory::bytes_of_chunk;
using memory::chunk_count;
using memory::Mapping;
using memory::page_bytes;
using memory::require_sealed;
using memory::whole_pages;

constexpr std::uint64_t arena_magic = 0x616e6572612d6d73ULL;
constexpr std::uint64_t adopted_magic = 0x6574706f64612d73ULL;
constexpr auto max_bytes = ByteCount{std::numeric_limits<std::ptrdiff_t>::max()};

struct ArenaKey {
  std::uint64_t magic = arena_magic;
  std::uint64_t serial = 0;  ///< unique per region: readers keep mappings by key
  std::uint64_t size_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t present = 0;  ///< one bit per chunk that was not discarded; their descriptors are sent with the key
};
static_assert(memory::max_chunks <= max_key_descriptors && max_key_descriptors <= 64);

struct AdoptedKey {
  std::uint64_t magic = adopted_magic;
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;
  MarkAddress mark;
};

class ArenaRegion final : public Region {
 public:
  explicit ArenaRegion(std::shared_ptr<memory::SharedMemory> shared) : shared_(std::move(shared)) {}
  [[nodiscard]] Memory memory() const override { return {shared_->address(), shared_->bytes(), {}}; }
  [[nodiscard]] Bytes key() const override {
    Bytes out;
    append(out, ArenaKey{.serial = serial_,
                         .size_bytes = shared_->bytes(),
                         .chunk_bytes = shared_->chunk_bytes(),
                         .present = shared_->present()});
    seal(out);
    return out;
  }
  [[nodiscard]] std::vector<int> descriptors() const override { return shared_->descriptors(); }
  // Readers that have a chunk mapped keep it.
  ByteCount discard(ByteCount offset_bytes, ByteCount bytes) override { return shared_->discard(offset_bytes, bytes); }
  [[nodiscard]] bool holds(ByteCount offset_bytes, ByteCount bytes) const override {
    return shared_->holds(offset_bytes, bytes);
  }
  [[nodiscard]] ByteCount untouched_bytes() const { return shared_->untouched_bytes(); }

 private:
  std::uint64_t serial_ = unique_number();
  std::shared_ptr<memory::SharedMemory> shared_;  // owners: this and whoever gave it
};

// Sealed against writers once this process has mapped it.
std::unique_ptr<ArenaRegion> new_arena(ByteCount size_bytes) {
  auto shared = std::make_shared<memory::SharedMemory>(size_bytes, memory::SharedMemory::Pages::on_touch);
  shared->seal();
  return std::make_unique<ArenaRegion>(std::move(shared));
}

/// Memory that was allocated and not touched yet counts as used: its pages will be needed.
class Promises {
 public:
  static Promises& of_process() {
    static auto& instance =
        *new Promises;  // never destroyed: regions of detached threads may outlive static destruction
    return instance;
  }
  std::unique_ptr<Region> allocate(ByteCount size_bytes);
  void forget(const ArenaRegion& arena) {
    const std::lock_guard lock(mutex_);
    arenas_.erase(&arena);
  }

 private:
  std::mutex mutex_;
  std::set<const ArenaRegion*> arenas_;
};

class PromisedRegion final : public Region {
 public:
  explicit PromisedRegion(std::unique_ptr<ArenaRegion> arena) : arena_(std::move(arena)) {}
  ~PromisedRegion() override { Promises::of_process().forget(*arena_); }
  PromisedRegion(const PromisedRegion&) = delete;
  PromisedRegion& operator=(const PromisedRegion&) = delete;
  [[nodiscard]] Memory memory() const override { return arena_->memory(); }
  [[nodiscard]] Bytes key() const override { return arena_->key(); }
  [[nodiscard]] std::vector<int> descriptors() const override { return arena_->descriptors(); }
  ByteCount discard(ByteCount offset_bytes, ByteCount bytes) override { return arena_->discard(offset_bytes, bytes); }
  [[nodiscard]] bool holds(ByteCount offset_bytes, ByteCount bytes) const override {
    return arena_->holds(offset_bytes, bytes);
  }

 private:
  std::unique_ptr<ArenaRegion> arena_;
};

[[noreturn]] void refuse_region(ByteCount size_bytes, const std::string& why) {
  throw Error(ErrorCode::out_of_resources, fmt::format("cannot allocate a region of {} bytes: {}", size_bytes, why));
}

std::unique_ptr<Region> Promises::allocate(ByteCount size_bytes) {
  const std::lock_guard lock(mutex_);
  ByteCount promised = 0;
  for (const ArenaRegion* arena : arenas_) promised += arena->untouched_bytes();
  const MemoryLeft left = memory_left();
  if (size_bytes > left.bytes - std::min(left.bytes, promised)) {
    refuse_region(size_bytes, fmt::format("{} bytes are left ({}), {} of them promised to regions of this process that "
                                          "are not in use yet",
                                          left.bytes, left.limit, promised));
  }
  try {
    auto arena = new_arena(size_bytes);
    const ArenaRegion* known = arena.get();
    auto region = std::make_unique<PromisedRegion>(std::move(arena));
    arenas_.insert(known);
    return region;
  } catch (const Error& error) {
    refuse_region(size_bytes, error.what());
  }
}

class AdoptedRegion final : public Region {
 public:
  explicit AdoptedRegion(const Memory& memory) : memory_(memory) {}
  [[nodiscard]] Memory memory() const override { return memory_; }
  [[nodiscard]] Bytes key() const override {
    Bytes out;
    append(out, AdoptedKey{.address = reinterpret_cast<std::uintptr_t>(memory_.address),
                           .size_bytes = memory_.bytes,
                           .mark = {mark_.number(), mark_.address()}});
    seal(out);
    return out;
  }

 private:
  Memory memory_;
  Mark mark_;
};

[[noreturn]] void refuse_key(const std::string& why) {
  throw Error(ErrorCode::transport_failed, why);
}

std::uint64_t magic_of(ByteView body) {
  return take<std::uint64_t>(body).value_or(0);
}

// Decodes the record; `body` must contain nothing else.
template <typename Key>
Key whole_record(ByteView body) {
  const auto key = take<Key>(body);
  if (!key || !body.empty()) refuse_key("a region key of the shm transport has the wrong length");
  return *key;
}

void require_covered(ByteCount announced, ByteCount covered) {
  if (announced <= covered) return;
  refuse_key(fmt::format("region key covers {} bytes, {} were announced", covered, announced));
}

Mapping map_arena(const ArenaKey& key, const std::vector<support::Descriptor>& descriptors) {
  if (key.size_bytes > max_bytes - page_bytes() || key.chunk_bytes == 0 || key.chunk_bytes > max_bytes ||
      key.chunk_bytes % page_bytes() != 0) {
    refuse_key(
        fmt::format("region key has impossible sizes: {} bytes in pieces of {}", key.size_bytes, key.chunk_bytes));
  }
  const ByteCount count = chunk_count(key.size_bytes, key.chunk_bytes);
  if (count > max_key_descriptors || static_cast<ByteCount>(std::bit_width(key.present)) > count) {
    refuse_key(fmt::format("region key speaks of {} pieces", count));
  }
  const auto there = static_cast<std::size_t>(std::popcount(key.present));
  if (there != descriptors.size()) {
    refuse_key(fmt::format("{} descriptors came with a region key that goes with {}", descriptors.size(), there));
  }
  const auto each = [&](auto visit) {
    std::size_t next = 0;
    for (ByteCount chunk = 0; chunk < count; ++chunk) {
      if ((key.present >> chunk & 1U) == 0) continue;
      visit(chunk * key.chunk_bytes, bytes_of_chunk(chunk, key.size_bytes, key.chunk_bytes), descriptors[next++]);
    }
  };
  // Check all chunks before mapping any: a refused key costs nothing.
  each([](ByteCount, ByteCount bytes, const support::Descriptor& memory) { require_sealed(memory, bytes); });
  Mapping mapping(whole_pages(key.size_bytes));
  each([&](ByteCount begin, ByteCount bytes, const support::Descriptor& memory) {
    mapping.map(begin, bytes, memory, false);
  });
  return mapping;
}

PublishedMemory published_memory(const AdoptedKey& key, std::size_t descriptors, pid_t peer) {
  if (descriptors != 0) refuse_key("descriptors came with the key of a region that has none");
  if (key.size_bytes > max_bytes || key.address > std::numeric_limits<std::uint64_t>::max() - key.size_bytes) {
    refuse_key("region key names memory that no process can have");
  }
  return {.pid = peer, .address = key.address, .mark = key.mark};
}

}  // namespace

std::unique_ptr<Region> allocate_region(ByteCount size_bytes) {
  if (size_bytes == 0) return new_arena(0);
  if (size_bytes > max_bytes - page_bytes()) refuse_region(size_bytes, "more than can be addressed");
  return Promises::of_process().allocate(size_bytes);
}

std::unique_ptr<Region> share_region(std::shared_ptr<memory::SharedMemory> memory) {
  return std::make_unique<ArenaRegion>(std::move(memory));
}

std::unique_ptr<Region> adopt_region(const Memory& memory) {
  if (memory.place.kind == MemoryKind::cuda) return adopt_device_region(memory);
  return std::make_unique<AdoptedRegion>(memory);
}

std::unique_ptr<ShmRemote> import_region(RegionKey key, ByteCount size_bytes, pid_t peer) {
  const auto body = unseal(key.bytes);
  auto remote = std::make_unique<ShmRemote>(size_bytes);
  if (body && is_device_key(*body)) {
    remote->device_ = map_device_memory(*body, std::move(key.descriptors), size_bytes, peer);
    return remote;
  }
  switch (body ? magic_of(*body) : 0) {
    case arena_magic: {
      const auto record = whole_record<ArenaKey>(*body);
      require_covered(size_bytes, record.size_bytes);
      remote->mapping_ = std::make_shared<const Mapping>(map_arena(record, key.descriptors));
      return remote;
    }
    case adopted_magic: {
      const auto record = whole_record<AdoptedKey>(*body);
      require_covered(size_bytes, record.size_bytes);
      remote->published_ = published_memory(record, key.descriptors.size(), peer);
      return remote;
    }
    default: refuse_key("not a region key of the shm transport, or a garbled one");
  }
}

}  // namespace shardwire::transport::shm
