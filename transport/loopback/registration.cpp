// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <string>

#include "memory/device.hpp"
#include "transport/bytes.hpp"
#include "transport/device_use.hpp"
#include "transport/loopback/handles.hpp"

namespace shardwire::transport::loopback {
namespace {

constexpr std::uint64_t key_magic = 0x79656b2d706f6f6cULL;

struct Key {
  std::uint64_t magic = key_magic;
  std::uint64_t backing = 0;
  std::uint64_t size_bytes = 0;
};

// Weak: the directory finds live objects and keeps none alive.
struct Directory {
  std::mutex mutex;
  std::uint64_t next_id = 1;
  std::map<std::uint64_t, std::weak_ptr<Port>> ports;
  std::map<std::uint64_t, std::weak_ptr<Backing>> backings;
};

// Never destroyed: fabrics of detached threads may outlive static destruction.
Directory& directory() {
  static auto& instance = *new Directory;
  return instance;
}

class LoopbackRegion final : public Region {
 public:
  explicit LoopbackRegion(std::shared_ptr<Backing> backing) : backing_(std::move(backing)) {}
  ~LoopbackRegion() override {
    {
      const std::lock_guard lock(directory().mutex);
      directory().backings.erase(backing_->id);
    }
    backing_->withdraw();
  }
  LoopbackRegion(const LoopbackRegion&) = delete;
  LoopbackRegion& operator=(const LoopbackRegion&) = delete;
  [[nodiscard]] Memory memory() const override { return backing_->memory(); }
  [[nodiscard]] Bytes key() const override {
    Bytes out;
    append(out, Key{.backing = backing_->id, .size_bytes = backing_->memory().bytes});
    return out;
  }

 private:
  std::shared_ptr<Backing> backing_;
};

std::shared_ptr<Backing> find_backing(std::uint64_t id) {
  const std::lock_guard lock(directory().mutex);
  const auto found = directory().backings.find(id);
  return found == directory().backings.end() ? nullptr : found->second.lock();
}

// Requires: device memory.
memory::DeviceAllocation allocation_of(const Memory& memory) {
  if (const support::Fallback why_not = why_no_device_memory(); !why_not.empty()) {
    throw Error(ErrorCode::unsupported, "the loopback transport maps no memory of devices: " + why_not.detail);
  }
  return allocation_around(*memory::device_runtime().runtime, memory);
}

}  // namespace

std::string domain() {
  // The process id alone is not enough: it is reused, and equal in two containers.
  static const std::uint64_t nonce = std::random_device{}() * 0x1'0000'0001ULL;
  return fmt::format("process {}-{:x}", getpid(), nonce);
}

std::shared_ptr<Port> open_port() {
  const std::lock_guard lock(directory().mutex);
  const std::uint64_t id = directory().next_id++;
  auto port = std::make_shared<Port>(id);
  directory().ports.emplace(id, port);
  return port;
}

void close_port(Port& port) {
  {
    const std::lock_guard lock(directory().mutex);
    directory().ports.erase(port.id());
  }
  port.close();
}

std::shared_ptr<Port> find_port(std::uint64_t id) {
  const std::lock_guard lock(directory().mutex);
  const auto found = directory().ports.find(id);
  return found == directory().ports.end() ? nullptr : found->second.lock();
}

Backing::Backing(ByteCount bytes) {
  if (bytes == 0) return;
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorCode::out_of_resources, fmt::format("cannot allocate a region of {} bytes", bytes));
  }
  memory_ = {static_cast<std::byte*>(mapped), bytes, {}};
}

Backing::Backing(const Memory& memory) : memory_(memory), adopted_(true) {
  if (!on_device()) return;
  const memory::DeviceAllocation found = allocation_of(memory);
  allocation_ = found.number;
  peer_access_ = found.peer_access;
}

std::string Backing::why_gone() const {
  if (!on_device()) return {};
  try {
    if (allocation_of(memory_).number == allocation_) return {};
    return "it was freed";
  } catch (const Error& error) {
    return error.what();
  }
}

Backing::~Backing() {
  if (!adopted_ && memory_.address != nullptr) ::munmap(memory_.address, memory_.bytes);
}

bool Backing::read(std::span<const ReadRange> ranges) {
  const std::unique_lock lock = adopted_ ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
  if (adopted_ && withdrawn_) return false;
  for (const ReadRange& range : ranges) {
    if (!range.into.empty()) std::memcpy(range.into.address, memory_.address + range.offset_bytes, range.into.bytes);
  }
  return true;
}

void Backing::withdraw() {
  const std::lock_guard lock(mutex_);
  withdrawn_ = true;
}

std::unique_ptr<Region> make_region(std::shared_ptr<Backing> backing) {
  const std::lock_guard lock(directory().mutex);
  backing->id = directory().next_id++;
  directory().backings.emplace(backing->id, backing);
  return std::make_unique<LoopbackRegion>(std::move(backing));
}

std::unique_ptr<RemoteRegion> import_backing(ByteView key, ByteCount size_bytes) {
  const auto record = take<Key>(key);
  if (!record || record->magic != key_magic || !key.empty()) {
    throw Error(ErrorCode::transport_failed, "not a region key of the loopback transport");
  }
  auto backing = find_backing(record->backing);
  if (!backing || backing->memory().bytes != record->size_bytes) {
    throw Error(ErrorCode::transport_failed, "region key names memory that is not there (any more)");
  }
  if (size_bytes > record->size_bytes) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("region key covers {} bytes, {} were announced", record->size_bytes, size_bytes));
  }
  return std::make_unique<LoopbackRemote>(std::move(backing), size_bytes);
}

}  // namespace shardwire::transport::loopback
