// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>
#include <sys/mman.h>

#include "transport/transport.hpp"

// Regions that a fabric only sends from: host memory without a key.
namespace shardwire::transport {

class PrivatePages final : public Region {
 public:
  explicit PrivatePages(ByteCount size_bytes) {
    if (size_bytes == 0) return;
    void* const mapped = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw Error(ErrorCode::out_of_resources, fmt::format("cannot allocate a region of {} bytes", size_bytes));
    }
    memory_ = {static_cast<std::byte*>(mapped), size_bytes, {}};
  }
  ~PrivatePages() override {
    if (memory_.address != nullptr) ::munmap(memory_.address, memory_.bytes);
  }
  PrivatePages(const PrivatePages&) = delete;
  PrivatePages& operator=(const PrivatePages&) = delete;
  [[nodiscard]] Memory memory() const override { return memory_; }
  [[nodiscard]] Bytes key() const override { return {}; }

 private:
  Memory memory_;
};

class PrivateMemory final : public Region {
 public:
  explicit PrivateMemory(const Memory& memory) : memory_(memory) {}
  [[nodiscard]] Memory memory() const override { return memory_; }
  [[nodiscard]] Bytes key() const override { return {}; }

 private:
  Memory memory_;
};

/// Errors: throws Error{unsupported} for memory of a device.
inline void require_host(std::string_view transport, const MemoryPlace& place) {
  if (place.kind == MemoryKind::host) return;
  throw Error(ErrorCode::unsupported, fmt::format("the {} transport knows host memory only", transport));
}

}  // namespace shardwire::transport
