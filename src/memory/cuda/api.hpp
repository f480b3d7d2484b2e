// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "memory/device_copy/table.hpp"
#include "memory/device_copy/value_box.hpp"
#include "memory/digest.hpp"

namespace shardwire::memory::cuda {

/// All CUDA functions in use, as a table: tests without a device supply their own.
struct Api {
  // The runtime, which is linked into the module.
  decltype(&::cudaGetErrorName) get_error_name = nullptr;
  decltype(&::cudaGetErrorString) get_error_string = nullptr;
  decltype(&::cudaGetLastError) get_last_error = nullptr;
  decltype(&::cudaRuntimeGetVersion) runtime_get_version = nullptr;
  decltype(&::cudaDriverGetVersion) driver_get_version = nullptr;
  decltype(&::cudaGetDeviceCount) get_device_count = nullptr;
  decltype(&::cudaGetDeviceProperties) get_device_properties = nullptr;
  decltype(&::cudaDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&::cudaDeviceCanAccessPeer) device_can_access_peer = nullptr;
  decltype(&::cudaDeviceEnablePeerAccess) device_enable_peer_access = nullptr;
  decltype(&::cudaMalloc) device_malloc = nullptr;
  decltype(&::cudaFree) device_free = nullptr;
  decltype(&::cudaHostAlloc) host_alloc = nullptr;
  decltype(&::cudaFreeHost) host_free = nullptr;
  decltype(&::cudaStreamCreateWithFlags) stream_create = nullptr;
  decltype(&::cudaStreamDestroy) stream_destroy = nullptr;
  decltype(&::cudaStreamSynchronize) stream_synchronize = nullptr;
  decltype(&::cudaStreamWaitEvent) stream_wait_event = nullptr;
  decltype(&::cudaStreamAddCallback) stream_add_callback = nullptr;
  decltype(&::cudaEventCreateWithFlags) event_create = nullptr;
  decltype(&::cudaEventRecord) event_record = nullptr;
  decltype(&::cudaEventQuery) event_query = nullptr;
  decltype(&::cudaEventDestroy) event_destroy = nullptr;
  decltype(&::cudaMemcpyAsync) memcpy_async = nullptr;
  decltype(&::cudaMemcpy2DAsync) memcpy_2d_async = nullptr;
  decltype(&::cudaMemsetAsync) memset_async = nullptr;

  // The driver, whose functions are looked up.
  CUresult (*device_get)(CUdevice* device, int ordinal) = nullptr;
  CUresult (*primary_context_retain)(CUcontext* context, CUdevice device) = nullptr;
  CUresult (*context_push)(CUcontext context) = nullptr;
  CUresult (*context_pop)(CUcontext* context) = nullptr;
  CUresult (*pointer_get_attributes)(unsigned int count, CUpointer_attribute* attributes, void** data,
                                     CUdeviceptr address) = nullptr;

  CUresult (*device_attribute)(int* value, CUdevice_attribute attribute, CUdevice device) = nullptr;
  CUresult (*primary_context_get_state)(CUdevice device, unsigned int* flags, int* active) = nullptr;
  CUresult (*pointer_set_attribute)(const void* value, CUpointer_attribute attribute, CUdeviceptr address) = nullptr;
  CUresult (*flush_remote_writes)(CUflushGPUDirectRDMAWritesTarget target,
                                  CUflushGPUDirectRDMAWritesScope scope) = nullptr;

  CUresult (*ipc_get_mem_handle)(CUipcMemHandle* handle, CUdeviceptr address) = nullptr;
  CUresult (*ipc_open_mem_handle)(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) = nullptr;
  CUresult (*ipc_close_mem_handle)(CUdeviceptr address) = nullptr;
  CUresult (*mem_retain)(CUmemGenericAllocationHandle* handle, void* address) = nullptr;
  CUresult (*mem_release)(CUmemGenericAllocationHandle handle) = nullptr;
  CUresult (*mem_export)(void* descriptor, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                         unsigned long long flags) = nullptr;
  CUresult (*mem_import)(CUmemGenericAllocationHandle* handle, void* descriptor,
                         CUmemAllocationHandleType type) = nullptr;
  CUresult (*mem_address_reserve)(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr wanted,
                                  unsigned long long flags) = nullptr;
  CUresult (*mem_address_free)(CUdeviceptr address, std::size_t bytes) = nullptr;
  CUresult (*mem_map)(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags) = nullptr;
  CUresult (*mem_unmap)(CUdeviceptr address, std::size_t bytes) = nullptr;
  CUresult (*mem_set_access)(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
                             std::size_t count) = nullptr;

  // The kernels (memory/cuda/kernels.hpp), on the device of the current context.
  cudaError_t (*launch_copy)(const TableView& table, cudaStream_t stream) = nullptr;
  /// `leaves`: device memory for table.size().leaves digests. `digests`: device memory for one digest per copy.
  cudaError_t (*launch_digest)(const TableView& table, Digest128* leaves, Digest128* digests,
                               cudaStream_t stream) = nullptr;
  cudaError_t (*launch_fill)(const ValueView& values, cudaStream_t stream) = nullptr;
  /// Adds to `wrong`, which is device memory.
  cudaError_t (*launch_count_wrong)(const ValueView& values, std::uint64_t* wrong, cudaStream_t stream) = nullptr;
};

/// The real functions, except the driver's.
Api real_api();
/// Adds the driver's functions. Requires: there is a driver. Errors: throws Error{unsupported} if it lacks one.
void look_up_driver(Api& api);

}  // namespace shardwire::memory::cuda
