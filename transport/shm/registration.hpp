// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/shm/attach.hpp"
#include "transport/shm/device_memory.hpp"
#include "transport/shm/sealed_memory.hpp"
#include "transport/transport.hpp"

namespace shardwire::transport::shm {

/// Arenas lie in pieces, so that whole ones can be given back one day: larger ones when there would be too many of them.
inline constexpr ByteCount smallest_chunk_bytes = ByteCount{256} << 20;
/// Requires: fits into the addresses of a process.
ByteCount chunk_bytes_for(ByteCount arena_bytes);

/// Memory that peers can map. Any thread. Errors: throws Error{out_of_resources} naming what was asked for and what is left.
std::unique_ptr<Region> allocate_region(ByteCount size_bytes);
/// Memory that peers can read by cross-memory attach, where they may; a device's: that they can map. Any thread.
std::unique_ptr<Region> adopt_region(const Memory& memory);

/// A peer's memory: mapped here, or else read by attach where it is the host's.
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
  std::shared_ptr<const Mapping> mapping_{};  // owners: this, and reads under way
  PublishedMemory published_{};               // where it is not mapped
  MappedDeviceMemory device_{};               // or else
};

/// `peer`: the process whose key it is, as numbered here. Errors: throws Error{transport_failed} saying what is wrong.
std::unique_ptr<ShmRemote> import_region(RegionKey key, ByteCount size_bytes, pid_t peer);

}  // namespace shardwire::transport::shm
