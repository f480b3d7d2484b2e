// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/allocate.hpp"

#include <fmt/core.h>

#include <string>

namespace shardwire::memory::cuda {

// The error message includes the requested size.
DeviceBytes allocate_on_device(Platform& platform, ByteCount bytes) {
  void* address = nullptr;
  const std::string operation = fmt::format("cudaMalloc of {} bytes", bytes);
  platform.check(platform.api().device_malloc(&address, bytes), operation.c_str());
  return {static_cast<std::byte*>(address), {&platform.api()}};
}

HostBytes allocate_on_host(Platform& platform, ByteCount bytes) {
  void* address = nullptr;
  const std::string operation = fmt::format("cudaHostAlloc of {} bytes", bytes);
  platform.check(platform.api().host_alloc(&address, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                 operation.c_str());
  return {static_cast<std::byte*>(address), {&platform.api()}};
}

}  // namespace shardwire::memory::cuda
