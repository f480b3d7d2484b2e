// SPDX-License-Identifier: Apache-2.0
#include "memory/sealed_memory.hpp"
#include "transport/transport.hpp"

namespace shardwire::transport::shm {

using memory::Mapping;

// Tries everything that a region needs from the kernel, once.
Viability probe(Asked) {
  try {
    const ByteCount bytes = memory::page_bytes();
    const support::Descriptor shared = memory::create_memory(bytes);
    Mapping owners(bytes);
    owners.map(0, bytes, shared, true);
    memory::seal_memory(shared);
    memory::require_sealed(shared, bytes);
    Mapping readers(bytes);
    readers.map(0, bytes, shared, false);
    *owners.address() = std::byte{1};
    if (*readers.address() != std::byte{1}) {
      return {false, "shared memory (memfd) is not shared here", FallbackReason::failed};
    }
    return {true, "built in; processes of one host"};
  } catch (const Error& error) {
    return {false, error.what(), FallbackReason::failed};
  }
}

}  // namespace shardwire::transport::shm
