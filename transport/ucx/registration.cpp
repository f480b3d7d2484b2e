// SPDX-License-Identifier: Apache-2.0
#include "transport/private_region.hpp"
#include "transport/ucx/worker.hpp"

// Memory is registered here once there are reads; until then UCX registers by itself what it sends.
namespace shardwire::transport::ucx {

std::unique_ptr<Region> allocate_region(ByteCount size_bytes, const MemoryPlace& place) {
  require_host("ucx", place);
  return std::make_unique<PrivatePages>(size_bytes);
}

std::unique_ptr<Region> adopt_region(const Memory& memory) {
  require_host("ucx", memory.place);
  return std::make_unique<PrivateMemory>(memory);
}

}  // namespace shardwire::transport::ucx
