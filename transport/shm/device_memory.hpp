// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "transport/transport.hpp"

// Memory of devices for other processes of the host to map: CUDA IPC. One handle for each allocation, or one descriptor for each
// chunk, however many regions lie in it. A process maps an allocation once, however many restores read it; where it is chunks, those
// that a region lies in are mapped side by side, once for each region with others.
namespace shardwire::transport::shm {

/// Key of memory of a device: what to open, or why nobody can. Any thread.
/// Errors: throws Error{invalid_argument} for memory that is not a device's (any more).
std::unique_ptr<Region> adopt_device_region(const Memory& memory);

/// Memory of a device of a peer, or why it is not mapped.
struct MappedDeviceMemory {
  ConstMemory memory{};
  std::string why_not{};
  bool peer_access = true;                ///< see RemoteRegion::has_peer_access()
  std::shared_ptr<const void> mapping{};  ///< keeps it mapped; owners: all that lie in the same allocation
};
/// Whether `body` is that of such a key.
bool is_device_key(ByteView body);
/// The first `size_bytes` of it. `peer`: as in import_region(). What the driver refuses is no error: such memory is not mapped.
/// Errors: throws Error{transport_failed} saying what is wrong with the key.
MappedDeviceMemory map_device_memory(ByteView body, std::vector<support::Descriptor> descriptors, ByteCount size_bytes,
                                     pid_t peer);

}  // namespace shardwire::transport::shm
