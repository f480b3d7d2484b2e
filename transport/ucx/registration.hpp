// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {

/// What a peer is told about a region.
struct DecodedKey {
  std::uint64_t base = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t serial = 0;  ///< of the region in its process: two regions never have the same key
  ByteView packed;           ///< UCX's own key; empty: cannot be mapped
};
Bytes encode(const DecodedKey& key);
/// Errors: throws Error{transport_failed}. The result points into `key`.
DecodedKey decode_region_key(ByteView key);

/// Shared memory when `host` is there, ordinary memory otherwise. May be called by any thread.
std::unique_ptr<Region> allocate_region(std::shared_ptr<Context> host, ByteCount size_bytes);

/// The caller's memory: peers can be sent its bytes only.
std::unique_ptr<Region> adopt_region(const Memory& memory);

/// `endpoint` null: a region that cannot be mapped. `worker` is kept until the region is gone.
std::unique_ptr<RemoteRegion> import_region(std::shared_ptr<Worker> worker, ucp_ep* endpoint, ByteView key,
                                            ByteCount size_bytes);

}  // namespace shardwire::transport::ucx
