// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/shared_memory.hpp"
#include "transport/shm/attach.hpp"
#include "transport/shm/device_memory.hpp"
#include "transport/transport.hpp"

namespace shardwire::transport::shm {

/// Memory that peers can map. Any thread. Errors: throws Error{out_of_resources} with the requested and available
/// bytes.
std::unique_ptr<Region> allocate_region(ByteCount size_bytes);
/// Memory that another process has made, and that peers can map. Requires: it is sealed before its key is used.
std::unique_ptr<Region> share_region(std::shared_ptr<memory::SharedMemory> memory);
/// Memory that peers can read by cross-memory attach if permitted; device memory can be mapped. Any thread.
std::unique_ptr<Region> adopt_region(const Memory& memory);

/// A peer's memory: mapped here, or read by attach if it is host memory.
class ShmRemote final : public RemoteRegion {
 public:
  explicit ShmRemote(ByteCount size_bytes) : size_bytes_(size_bytes) {}
  [[nodiscard]] ConstMemory mapped() const override {
    return mapping_ ? ConstMemory{mapping_->address(), size_bytes_, {}} : device_.memory;
  }
  [[nodiscard]] std::string why_not_mapped() const override { return device_.why_not; }
  [[nodiscard]] bool has_peer_access() const override { return device_.peer_access; }
  [[nodiscard]] bool is_on_device() const { return !device_.memory.empty() || !device_.why_not.empty(); }
  [[nodiscard]] ByteCount size_bytes() const { return size_bytes_; }

 private:
  friend std::unique_ptr<ShmRemote> import_region(RegionKey key, ByteCount size_bytes, pid_t peer);
  friend class ShmEndpoint;
  ByteCount size_bytes_;
  std::shared_ptr<const memory::Mapping> mapping_{};  // owners: this and reads under way
  PublishedMemory published_{};                       // if it is not mapped
  MappedDeviceMemory device_{};                       // if it is device memory
};

/// `peer`: the exporting process, as numbered here. Errors: throws Error{transport_failed} that names the defect.
std::unique_ptr<ShmRemote> import_region(RegionKey key, ByteCount size_bytes, pid_t peer);

}  // namespace shardwire::transport::shm
