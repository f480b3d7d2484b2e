// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

#include "memory/cuda/api.hpp"

// One handle per object. Freeing device memory requires its context to be current.
namespace shardwire::memory::cuda {

struct DeviceFree {
  const Api* api;
  void operator()(std::byte* address) const { api->device_free(address); }
};
using DeviceBytes = std::unique_ptr<std::byte, DeviceFree>;

struct HostFree {
  const Api* api;
  void operator()(std::byte* address) const { api->host_free(address); }
};
using HostBytes = std::unique_ptr<std::byte, HostFree>;

struct StreamDestroy {
  const Api* api;
  void operator()(cudaStream_t stream) const { api->stream_destroy(stream); }
};
using StreamHandle = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDestroy>;

struct EventDestroy {
  const Api* api;
  void operator()(cudaEvent_t event) const { api->event_destroy(event); }
};
using EventHandle = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDestroy>;

}  // namespace shardwire::memory::cuda
