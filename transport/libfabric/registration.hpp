// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/gpu_direct.hpp"
#include "transport/libfabric/domain.hpp"

namespace shardwire::transport::libfabric {

/// A key as it has come from a peer of this provider, and has been found to be one.
struct RemoteKey {
  std::uint64_t key = 0;
  std::uint64_t begin = 0;  ///< the region's, as reads count
  /// Of the region's mark, where software answers reads. It can be read as long as the region is there, and is read when all else
  /// has come: an answer that had begun when the region went may have other bytes in it.
  std::uint64_t mark_key = 0;
  std::uint64_t mark_begin = 0;
};
using MarkValue = std::uint64_t;  ///< of no meaning

/// Any thread. `serving`: the endpoint that regions are read through; it lives longer. `fabric`: whose key it is.
/// Errors: as Fabric::allocate and Fabric::adopt.
/// `gpus`: what is known of devices whose memory is adopted.
std::unique_ptr<Region> allocate_region(const std::shared_ptr<Domain>& domain, fid_ep* serving, std::uint64_t fabric,
                                        ByteCount size_bytes, const MemoryPlace& place);
std::unique_ptr<Region> adopt_region(const std::shared_ptr<Domain>& domain, fid_ep* serving, std::uint64_t fabric,
                                     const Memory& memory, GpuDirect& gpus);

/// Errors: throws Error{transport_failed} for one that is none, is for less than `size_bytes`, or is of another fabric than
/// `fabric`.
RemoteKey decode_key(ByteView key, ByteCount size_bytes, std::uint64_t fabric, const Rules& rules);

/// What has to be kept while a list of ranges is read into, with the provider's name for each.
struct LocalMemory {
  std::vector<std::shared_ptr<const ProviderRegistration>> registrations;
  std::vector<void*> descriptors;  ///< one for each range; empty: none are needed
};
/// Registers what is no region of the domain's: for this once, since its owner may unmap it afterwards.
/// Errors: throws Error{out_of_resources} for host memory; as GpuDirect::register_around() for that of a device.
LocalMemory register_ranges(Domain& domain, fid_ep* reading, std::span<const ReadRange> ranges, GpuDirect& gpus);

}  // namespace shardwire::transport::libfabric
