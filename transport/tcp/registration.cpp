// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/mman.h>

#include "transport/tcp/handles.hpp"

// Memory here is what peers can be sent, and no more: no key.
namespace shardwire::transport::tcp {
namespace {

void require_host(const MemoryPlace& place) {
  if (place.kind == MemoryKind::host) return;
  throw Error(ErrorCode::unsupported, "the tcp transport knows host memory only");
}

class Pages final : public Region {
 public:
  explicit Pages(ByteCount size_bytes) {
    if (size_bytes == 0) return;
    void* const mapped = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw Error(ErrorCode::out_of_resources, fmt::format("cannot allocate a region of {} bytes", size_bytes));
    }
    memory_ = {static_cast<std::byte*>(mapped), size_bytes, {}};
  }
  ~Pages() override {
    if (memory_.address != nullptr) ::munmap(memory_.address, memory_.bytes);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  [[nodiscard]] Memory memory() const override { return memory_; }
  [[nodiscard]] Bytes key() const override { return {}; }

 private:
  Memory memory_;
};

class Adopted final : public Region {
 public:
  explicit Adopted(const Memory& memory) : memory_(memory) {}
  [[nodiscard]] Memory memory() const override { return memory_; }
  [[nodiscard]] Bytes key() const override { return {}; }

 private:
  Memory memory_;
};

}  // namespace

std::unique_ptr<Region> allocate_region(ByteCount size_bytes, const MemoryPlace& place) {
  require_host(place);
  return std::make_unique<Pages>(size_bytes);
}

std::unique_ptr<Region> adopt_region(const Memory& memory) {
  require_host(memory.place);
  return std::make_unique<Adopted>(memory);
}

}  // namespace shardwire::transport::tcp
