// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "transport/transport.hpp"

// CUDA IPC: device memory that other processes of the host map. There is one handle per allocation, or one descriptor
// per chunk, however many regions it contains. A process maps an allocation once for all restores that read it. If the
// allocation consists of chunks, the chunks that contain a region are mapped side by side, once per region.
namespace shardwire::transport::shm {

/// Key of device memory: the handle to open, or the reason why it cannot be opened. Any thread.
/// Errors: throws Error{invalid_argument} for memory that is not device memory (any more).
std::unique_ptr<Region> adopt_device_region(const Memory& memory);

/// A peer's device memory, or the reason why it is not mapped.
struct MappedDeviceMemory {
  ConstMemory memory{};
  std::string why_not{};
  bool peer_access = true;                ///< see RemoteRegion::has_peer_access()
  std::shared_ptr<const void> mapping{};  ///< keeps it mapped; owners: all regions of the same allocation
};
/// Whether `body` is the key of device memory.
bool is_device_key(ByteView body);
/// Maps the first `size_bytes`. `peer`: as in import_region(). If the driver refuses, the memory is not mapped and no
/// error is thrown.
/// Errors: throws Error{transport_failed} that names the defect of the key.
MappedDeviceMemory map_device_memory(ByteView body, std::vector<support::Descriptor> descriptors, ByteCount size_bytes,
                                     pid_t peer);

}  // namespace shardwire::transport::shm
