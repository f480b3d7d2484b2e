// SPDX-License-Identifier: Apache-2.0
#include "transport/private_region.hpp"
#include "transport/tcp/handles.hpp"

namespace shardwire::transport::tcp {

std::unique_ptr<Region> allocate_region(ByteCount size_bytes, const MemoryPlace& place) {
  require_host("tcp", place);
  return std::make_unique<PrivatePages>(size_bytes);
}

std::unique_ptr<Region> adopt_region(const Memory& memory) {
  require_host("tcp", memory.place);
  return std::make_unique<PrivateMemory>(memory);
}

}  // namespace shardwire::transport::tcp
