// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "transport/gpu_direct.hpp"
#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {

/// Memory that the NICs of a context know, host memory or that of a device. Borrows the memory.
class MappedMemory {
 public:
  /// Errors: throws Error{out_of_resources}, Error{unsupported} where UCX takes memory of a device for something else or no NIC
  ///         takes it.
  MappedMemory(std::shared_ptr<Worker> worker, const Memory& memory);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  [[nodiscard]] ucp_mem_h handle() const { return handle_; }
  /// What a peer's context needs to read it. Errors: throws Error.
  [[nodiscard]] Bytes packed_key() const;

 private:
  void require_right(const MemoryPlace& place) const;

  std::shared_ptr<Worker> worker_;  // owners: this and others; whose context it is
  ucp_mem_h handle_ = nullptr;
};

/// Allocations of devices that a context reads into, each known to its NIC while somebody has it: a freed one would hold its memory,
/// and nobody tells of that.
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
  std::shared_ptr<GpuDirect> gpus_;       // owners: the fabric and what reads for it
  std::map<std::uint64_t, Known> known_;  // by the driver's number
};

}  // namespace shardwire::transport::ucx
