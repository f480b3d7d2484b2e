// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/gpu_direct.hpp"
#include "transport/libfabric/domain.hpp"

namespace shardwire::transport::libfabric {

/// A key received from a peer of this provider, after validation.
struct RemoteKey {
  std::uint64_t key = 0;
  std::uint64_t begin = 0;  ///< start of the region in the provider's addressing
  /// Key of the region's mark, for providers that answer reads in software. The mark is readable as long as the region
  /// exists and is read after all other data: an answer that began before the region was withdrawn may contain other
  /// bytes.
  std::uint64_t mark_key = 0;
  std::uint64_t mark_begin = 0;
};
using MarkValue = std::uint64_t;  ///< the value is irrelevant

/// Any thread. `serving`: the endpoint through which regions are read; it outlives them. `fabric`: owner of the key.
/// `gpus`: knowledge about devices whose memory is adopted.
/// Errors: as Fabric::allocate and Fabric::adopt.
std::unique_ptr<Region> allocate_region(const std::shared_ptr<Domain>& domain, fid_ep* serving, std::uint64_t fabric,
                                        ByteCount size_bytes, const MemoryPlace& place);
std::unique_ptr<Region> adopt_region(const std::shared_ptr<Domain>& domain, fid_ep* serving, std::uint64_t fabric,
                                     const Memory& memory, GpuDirect& gpus);

/// Errors: throws Error{transport_failed} for an invalid key, a key for less than `size_bytes`, or a key of another
///         fabric than `fabric`.
RemoteKey decode_key(ByteView key, ByteCount size_bytes, std::uint64_t fabric, const Rules& rules);

/// The objects to keep while a list of ranges is read, with the provider's descriptor for each range.
struct LocalMemory {
  std::vector<std::shared_ptr<const ProviderRegistration>> registrations;
  std::vector<void*> descriptors;  ///< one per range; empty: none needed
};
/// Registers memory that is not a region of the domain, for this list only, since its owner may unmap it afterwards.
/// Errors: throws Error{out_of_resources} for host memory; as GpuDirect::register_around() for device memory.
LocalMemory register_ranges(Domain& domain, fid_ep* reading, std::span<const ReadRange> ranges, GpuDirect& gpus);

}  // namespace shardwire::transport::libfabric
