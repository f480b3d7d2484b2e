// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "transport/gpu_direct.hpp"
#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {

/// Host or device memory registered with the NICs of a context. Borrows the memory.
class MappedMemory {
 public:
  /// Errors: throws Error{out_of_resources}; Error{unsupported} if UCX misdetects device memory or no NIC registers it.
  MappedMemory(std::shared_ptr<Worker> worker, const Memory& memory);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  [[nodiscard]] ucp_mem_h handle() const { return handle_; }
  /// The key that a peer's context needs to read it. Errors: throws Error.
  [[nodiscard]] Bytes packed_key() const;

 private:
  void require_right(const MemoryPlace& place) const;

  std::shared_ptr<Worker> worker_;  // owners: this and others; provides the context
  ucp_mem_h handle_ = nullptr;
};

/// Device allocations that a context reads into. Each is registered with the NIC only while in use: a registration
/// would keep freed memory allocated, and nothing reports the free.
class DeviceTargets {
 public:
  /// Borrows `gpus`.
  DeviceTargets(std::shared_ptr<Worker> worker, std::shared_ptr<GpuDirect> gpus)
      : worker_(std::move(worker)), gpus_(std::move(gpus)) {}

  /// Errors: as GpuDirect::register_around().
  std::shared_ptr<const MappedMemory> around(const Memory& range);

 private:
  struct Known {
    memory::DeviceAllocation allocation;
    std::weak_ptr<const MappedMemory> mapped;
  };
  std::shared_ptr<Worker> worker_;        // owners: as in ReadingDevice
  std::shared_ptr<GpuDirect> gpus_;       // owners: the fabric and its readers
  std::map<std::uint64_t, Known> known_;  // by the driver's number
};

}  // namespace shardwire::transport::ucx
