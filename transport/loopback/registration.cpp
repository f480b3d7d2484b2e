// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <random>

#include "transport/bytes.hpp"
#include "transport/loopback/handles.hpp"

namespace shardwire::transport::loopback {
namespace {

constexpr std::uint64_t key_magic = 0x79656b2d706f6f6cULL;

struct Key {
  std::uint64_t magic = key_magic;
  std::uint64_t memory = 0;
  std::uint64_t size_bytes = 0;
};

// Weak: the directory finds what is alive and keeps nothing alive.
struct Directory {
  std::mutex mutex;
  std::uint64_t next_id = 1;
  std::map<std::uint64_t, std::weak_ptr<Port>> ports;
  std::map<std::uint64_t, std::weak_ptr<Memory>> memories;
};

// Never destroyed: fabrics of detached threads may outlive static destruction.
Directory& directory() {
  static auto& instance = *new Directory;
  return instance;
}

class LoopbackRegion final : public Region {
 public:
  explicit LoopbackRegion(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  ~LoopbackRegion() override {
    const std::lock_guard lock(directory().mutex);
    directory().memories.erase(memory_->id);
  }
  [[nodiscard]] std::span<std::byte> bytes() const override { return {memory_->data, memory_->size_bytes}; }
  [[nodiscard]] Bytes key() const override {
    Bytes out;
    append(out, Key{.memory = memory_->id, .size_bytes = memory_->size_bytes});
    return out;
  }

 private:
  std::shared_ptr<Memory> memory_;
};

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

Memory::Memory(ByteCount bytes) : size_bytes(static_cast<std::size_t>(bytes)) {
  if (size_bytes == 0) return;
  void* const mapped = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorCode::out_of_resources, fmt::format("cannot allocate a region of {} bytes", bytes));
  }
  data = static_cast<std::byte*>(mapped);
}

Memory::~Memory() {
  if (data != nullptr) ::munmap(data, size_bytes);
}

std::shared_ptr<Memory> find_memory(std::uint64_t id) {
  const std::lock_guard lock(directory().mutex);
  const auto found = directory().memories.find(id);
  return found == directory().memories.end() ? nullptr : found->second.lock();
}

std::unique_ptr<Region> allocate_region(ByteCount size_bytes) {
  auto memory = std::make_shared<Memory>(size_bytes);
  const std::lock_guard lock(directory().mutex);
  memory->id = directory().next_id++;
  directory().memories.emplace(memory->id, memory);
  return std::make_unique<LoopbackRegion>(std::move(memory));
}

std::unique_ptr<RemoteRegion> import_memory(ByteView key, ByteCount size_bytes) {
  const auto record = take<Key>(key);
  if (!record || record->magic != key_magic || !key.empty()) {
    throw Error(ErrorCode::transport_failed, "not a region key of the loopback transport");
  }
  auto memory = find_memory(record->memory);
  if (!memory || memory->size_bytes != record->size_bytes) {
    throw Error(ErrorCode::transport_failed, "region key names memory that is not there (any more)");
  }
  if (size_bytes > memory->size_bytes) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("region key covers {} bytes, {} were announced", memory->size_bytes, size_bytes));
  }
  return std::make_unique<LoopbackRemote>(std::move(memory), size_bytes);
}

}  // namespace shardwire::transport::loopback
