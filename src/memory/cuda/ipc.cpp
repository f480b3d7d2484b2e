// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/ipc.hpp"

#include <fmt/core.h>

#include <cstring>
#include <utility>
#include <vector>

namespace shardwire::memory::cuda {
namespace {

constexpr CUmemAllocationHandleType posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// The memory behind a chunk. A mapping keeps it alive, and so does a descriptor.
class Handle {
 public:
  Handle(const Api& api, CUmemGenericAllocationHandle handle) : api_(api), handle_(handle) {}
  ~Handle() { api_.mem_release(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  [[nodiscard]] CUmemGenericAllocationHandle get() const { return handle_; }

 private:
  const Api& api_;
  const CUmemGenericAllocationHandle handle_;
};

DeviceExport::Chunk export_chunk(Platform& platform, const Chunk& chunk) {
  CUmemGenericAllocationHandle retained{};
  platform.check(platform.api().mem_retain(&retained, reinterpret_cast<void*>(chunk.start)),
                 "cuMemRetainAllocationHandle");
  const Handle handle(platform.api(), retained);
  int descriptor = -1;
  platform.check(platform.api().mem_export(&descriptor, handle.get(), posix, 0), "cuMemExportToShareableHandle");
  return {chunk.bytes, support::Descriptor(descriptor)};
}

// Access rights for a chunk: only the devices listed here can access it; enabling peer access does not open chunks.
std::vector<CUmemAccessDesc> access_for(Platform& platform, int device) {
  std::vector<CUmemAccessDesc> access;
  const auto add = [&](int one) {
    access.push_back(
        {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = one}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  };
  add(device);
  int count = 0;
  platform.check(platform.api().get_device_count(&count), "cudaGetDeviceCount");
  for (int other = 0; other < count; ++other) {
    int can = 0;
    if (other == device) continue;
    platform.check(platform.api().device_can_access_peer(&can, other, device), "cudaDeviceCanAccessPeer");
    if (can != 0) add(other);
  }
  return access;
}

class Imported : public DeviceMemory {
 public:
  Imported(std::shared_ptr<Platform> platform, int device, ByteCount offset, ByteCount bytes)
      : platform_(std::move(platform)), device_(device), offset_(offset), bytes_(bytes) {}
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;

  [[nodiscard]] std::byte* address() const override { return reinterpret_cast<std::byte*>(start_ + offset_); }
  [[nodiscard]] ByteCount bytes() const override { return bytes_; }

 protected:
  // Runs in the context; without it nothing can be undone.
  template <typename Action>
  void undo(Action&& action) {
    try {
      const CurrentContext current(*platform_, device_);
      action(platform_->api());
    } catch (const Error&) {
      return;
    }
  }

  const std::shared_ptr<Platform> platform_;  // owners: as in Runtime
  const int device_;
  const ByteCount offset_;
  const ByteCount bytes_;
  CUdeviceptr start_ = 0;
};

class ByHandle final : public Imported {
 public:
  ByHandle(std::shared_ptr<Platform> platform, int device, const DeviceExport& exported)
      : Imported(std::move(platform), device, exported.offset, exported.bytes) {
    CUipcMemHandle handle{};
    if (exported.handle.size() != sizeof(handle)) {
      throw Error(ErrorCode::invalid_argument, "a handle of device memory has 64 bytes");
    }
    std::memcpy(&handle, exported.handle.data(), sizeof(handle));
    platform_->check(platform_->api().ipc_open_mem_handle(&start_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                     "cuIpcOpenMemHandle");
  }
  ~ByHandle() override {
    undo([this](const Api& api) { api.ipc_close_mem_handle(start_); });
  }
};

class ByDescriptors final : public Imported {
 public:
  ByDescriptors(std::shared_ptr<Platform> platform, int device, const DeviceExport& exported, ByteCount whole)
      : Imported(std::move(platform), device, exported.offset, exported.bytes), whole_(whole) {
    platform_->check(platform_->api().mem_address_reserve(&start_, whole_, 0, 0, 0), "cuMemAddressReserve");
    try {
      for (const DeviceExport::Chunk& chunk : exported.chunks) map(chunk);
      const auto access = access_for(*platform_, device_);
      platform_->check(platform_->api().mem_set_access(start_, whole_, access.data(), access.size()), "cuMemSetAccess");
    } catch (...) {
      unmap(platform_->api());
      throw;
    }
  }
  ~ByDescriptors() override {
    undo([this](const Api& api) { unmap(api); });
  }

 private:
  void map(const DeviceExport::Chunk& chunk) {
    const Api& api = platform_->api();
    CUmemGenericAllocationHandle imported{};
    const auto descriptor = static_cast<std::intptr_t>(chunk.descriptor.get());
    platform_->check(api.mem_import(&imported, reinterpret_cast<void*>(descriptor), posix),
                     "cuMemImportFromShareableHandle");
    const Handle handle(api, imported);
    const ByteCount mapped = mapped_.empty() ? 0 : mapped_.back().end() - start_;
    platform_->check(api.mem_map(start_ + mapped, chunk.bytes, 0, handle.get(), 0), "cuMemMap");
    mapped_.push_back({start_ + mapped, chunk.bytes});
  }
  void unmap(const Api& api) const {
    for (const Chunk& chunk : mapped_) api.mem_unmap(chunk.start, chunk.bytes);
    api.mem_address_free(start_, whole_);
  }

  const ByteCount whole_;
  std::vector<Chunk> mapped_{};
};

}  // namespace

DeviceExport export_chunks(Platform& platform, const FoundAllocation& found, std::uint64_t address, ByteCount bytes) {
  const DeviceAllocation& allocation = found.allocation;
  const auto start = reinterpret_cast<std::uintptr_t>(allocation.address);
  if (allocation.bytes - (address - start) < bytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} bytes from {:#x} are to be exported, and the allocation of device {} ends before that",
                            bytes, address, allocation.device));
  }
  DeviceExport out{.offset = address - start, .bytes = bytes};
  if (allocation.legacy_ipc) {
    CUipcMemHandle handle{};
    platform.check(platform.api().ipc_get_mem_handle(&handle, start), "cuIpcGetMemHandle");
    out.handle.resize(sizeof(handle));
    std::memcpy(out.handle.data(), &handle, sizeof(handle));
  } else if (allocation.descriptor_ipc) {
    for (const Chunk& chunk : found.chunks) out.chunks.push_back(export_chunk(platform, chunk));
  } else {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("memory of device {} at {:#x} was allocated in a way that no other process can map (a memory pool, "
                    "managed memory, or chunks without POSIX descriptors)",
                    allocation.device, address));
  }
  return out;
}

std::unique_ptr<DeviceMemory> map_export(const std::shared_ptr<Platform>& platform, int device,
                                         const DeviceExport& exported) {
  if (!exported.handle.empty()) return std::make_unique<ByHandle>(platform, device, exported);
  ByteCount whole = 0;
  for (const DeviceExport::Chunk& chunk : exported.chunks) whole += chunk.bytes;
  if (exported.offset > whole || whole - exported.offset < exported.bytes || whole == 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("chunks of {} bytes in all do not hold {} bytes from byte {}",
                                                         whole, exported.bytes, exported.offset));
  }
  return std::make_unique<ByDescriptors>(platform, device, exported, whole);
}

}  // namespace shardwire::memory::cuda
