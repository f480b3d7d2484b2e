// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "memory/cuda/api.hpp"
#include "memory/cuda/kernels.hpp"
#include "shardwire/error.hpp"

namespace shardwire::memory::cuda {
namespace {

// Looked up by the version that introduced the function in its present form.
template <typename Function>
void look_up(Function*& function, const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the NVIDIA driver has no {} (of CUDA {}.{})", name, version / 1000, version % 1000 / 10));
  }
  function = reinterpret_cast<Function*>(found);
}

}  // namespace

Api real_api() {
  Api api;
  api.get_error_name = &::cudaGetErrorName;
  api.get_error_string = &::cudaGetErrorString;
  api.get_last_error = &::cudaGetLastError;
  api.runtime_get_version = &::cudaRuntimeGetVersion;
  api.driver_get_version = &::cudaDriverGetVersion;
  api.get_device_count = &::cudaGetDeviceCount;
  api.get_device_properties = &::cudaGetDeviceProperties;
  api.device_get_attribute = &::cudaDeviceGetAttribute;
  api.device_can_access_peer = &::cudaDeviceCanAccessPeer;
  api.device_enable_peer_access = &::cudaDeviceEnablePeerAccess;
  api.device_malloc = &::cudaMalloc;
  api.device_free = &::cudaFree;
  api.host_alloc = &::cudaHostAlloc;
  api.host_free = &::cudaFreeHost;
  api.stream_create = &::cudaStreamCreateWithFlags;
  api.stream_destroy = &::cudaStreamDestroy;
  api.stream_synchronize = &::cudaStreamSynchronize;
  api.stream_wait_event = &::cudaStreamWaitEvent;
  api.stream_add_callback = &::cudaStreamAddCallback;
  api.event_create = &::cudaEventCreateWithFlags;
  api.event_record = &::cudaEventRecord;
  api.event_query = &::cudaEventQuery;
  api.event_destroy = &::cudaEventDestroy;
  api.memcpy_async = &::cudaMemcpyAsync;
  api.memcpy_2d_async = &::cudaMemcpy2DAsync;
  api.memset_async = &::cudaMemsetAsync;
  api.launch_copy = &launch_copy;
  api.launch_digest = &launch_digest;
  api.launch_fill = &launch_fill;
  api.launch_count_wrong = &launch_count_wrong;
  return api;
}

void look_up_driver(Api& api) {
  look_up(api.device_get, "cuDeviceGet", 2000);
  look_up(api.primary_context_retain, "cuDevicePrimaryCtxRetain", 7000);
  look_up(api.context_push, "cuCtxPushCurrent", 4000);
  look_up(api.context_pop, "cuCtxPopCurrent", 4000);
  look_up(api.pointer_get_attributes, "cuPointerGetAttributes", 7000);
  look_up(api.device_attribute, "cuDeviceGetAttribute", 2000);
  look_up(api.primary_context_get_state, "cuDevicePrimaryCtxGetState", 7000);
  look_up(api.pointer_set_attribute, "cuPointerSetAttribute", 6000);
  look_up(api.flush_remote_writes, "cuFlushGPUDirectRDMAWrites", 11030);
  look_up(api.ipc_get_mem_handle, "cuIpcGetMemHandle", 4010);
  look_up(api.ipc_open_mem_handle, "cuIpcOpenMemHandle", 11000);
  look_up(api.ipc_close_mem_handle, "cuIpcCloseMemHandle", 4010);
  look_up(api.mem_retain, "cuMemRetainAllocationHandle", 11000);
  look_up(api.mem_release, "cuMemRelease", 10020);
  look_up(api.mem_export, "cuMemExportToShareableHandle", 10020);
  look_up(api.mem_import, "cuMemImportFromShareableHandle", 10020);
  look_up(api.mem_address_reserve, "cuMemAddressReserve", 10020);
  look_up(api.mem_address_free, "cuMemAddressFree", 10020);
  look_up(api.mem_map, "cuMemMap", 10020);
  look_up(api.mem_unmap, "cuMemUnmap", 10020);
  look_up(api.mem_set_access, "cuMemSetAccess", 10020);
}

}  // namespace shardwire::memory::cuda
