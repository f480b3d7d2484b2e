// SPDX-License-Identifier: Apache-2.0
#include "memory/fake_cuda.hpp"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "memory/device_copy/copy_tile.hpp"
#include "memory/device_copy/value_box.hpp"

namespace shardwire::test {
namespace {

using memory::TableView;

// Global, since CUDA's functions have no argument for it.
FakeCuda* fake = nullptr;

FakeCuda::Stream* stream_of(cudaStream_t handle) {
  auto* const stream = reinterpret_cast<FakeCuda::Stream*>(handle);
  if (!fake->streams.contains(stream)) fake->mistakes.emplace_back("a stream that there is not");
  if (fake->contexts.empty() || fake->contexts.back() != stream->device) {
    fake->mistakes.emplace_back("a stream of another context");
  }
  return stream;
}

FakeCuda::Event* event_of(cudaEvent_t handle) {
  return reinterpret_cast<FakeCuda::Event*>(handle);
}

// The beginning of every call that needs a context.
cudaError_t called() {
  if (fake->contexts.empty()) fake->mistakes.emplace_back("a call without a context");
  return fake->broken;
}

cudaError_t queue(cudaStream_t handle, std::function<void()> work) {
  if (called() != cudaSuccess) return fake->broken;
  stream_of(handle)->work.push_back([work = std::move(work)](cudaError_t status) {
    if (status == cudaSuccess) work();
  });
  return cudaSuccess;
}

void run(FakeCuda::Stream& stream) {
  while (!stream.work.empty()) {
    const auto work = std::move(stream.work.front());
    stream.work.pop_front();
    work(fake->broken);
  }
}

cudaError_t allocate(std::map<std::byte*, std::unique_ptr<std::byte[]>>& memory, void** address, std::size_t bytes) {
  if (called() != cudaSuccess) return fake->broken;
  if (bytes > fake->memory_left) return cudaErrorMemoryAllocation;
  auto block = std::make_unique<std::byte[]>(bytes);
  *address = block.get();
  memory.emplace(block.get(), std::move(block));
  return cudaSuccess;
}

cudaError_t free(std::map<std::byte*, std::unique_ptr<std::byte[]>>& memory, void* address) {
  if (fake->contexts.empty()) fake->mistakes.emplace_back("freed without a context");
  if (memory.erase(static_cast<std::byte*>(address)) != 1) fake->mistakes.emplace_back("freed what there is not");
  for (const FakeCuda::Stream* stream : fake->streams) {
    if (!stream->work.empty()) fake->mistakes.emplace_back("freed while a stream works");
  }
  return fake->broken;
}

const char* name(cudaError_t) {
  return "a name";
}

cudaError_t properties(cudaDeviceProp* out, int device) {
  std::strcpy(out->name, "NVIDIA Fake");
  out->totalGlobalMem = 80ull << 30;
  out->pciDomainID = 0;
  out->pciBusID = 0x1b + device;
  out->pciDeviceID = 0;
  return cudaSuccess;
}

cudaError_t stream_create(cudaStream_t* out, unsigned flags) {
  if (called() != cudaSuccess) return fake->broken;
  auto* const stream = new FakeCuda::Stream{fake->contexts.back(), {}};
  fake->streams.insert(stream);
  fake->stream_flags = flags;
  *out = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}

cudaError_t stream_destroy(cudaStream_t handle) {
  FakeCuda::Stream* const stream = stream_of(handle);
  if (!stream->work.empty()) fake->mistakes.emplace_back("destroyed a stream that works");
  fake->streams.erase(stream);
  delete stream;
  return fake->broken;
}

cudaError_t stream_wait_event(cudaStream_t handle, cudaEvent_t event, unsigned) {
  if (!fake->events.contains(event_of(event))) return cudaErrorInvalidResourceHandle;
  fake->calls.emplace_back("wait");
  return queue(handle, [] {});
}

cudaError_t stream_add_callback(cudaStream_t handle, cudaStreamCallback_t callback, void* data, unsigned) {
  if (called() != cudaSuccess) return fake->broken;
  stream_of(handle)->work.push_back([=](cudaError_t status) { callback(handle, status, data); });
  return cudaSuccess;
}

cudaError_t event_create(cudaEvent_t* out, unsigned flags) {
  if (called() != cudaSuccess) return fake->broken;
  if ((flags & cudaEventDisableTiming) == 0) fake->mistakes.emplace_back("an event that takes the time");
  auto* const event = new FakeCuda::Event;
  fake->events.insert(event);
  *out = reinterpret_cast<cudaEvent_t>(event);
  return cudaSuccess;
}

cudaError_t event_record(cudaEvent_t event, cudaStream_t handle) {
  if (!fake->events.contains(event_of(event))) return cudaErrorInvalidResourceHandle;
  ++event_of(event)->pending;
  return queue(handle, [event] { --event_of(event)->pending; });
}

cudaError_t event_query(cudaEvent_t event) {
  if (called() != cudaSuccess) return fake->broken;
  return event_of(event)->pending > 0 ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t event_destroy(cudaEvent_t event) {
  fake->events.erase(event_of(event));
  delete event_of(event);
  return cudaSuccess;
}

cudaError_t memcpy_async(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (fake->memcpy_status != cudaSuccess) return fake->memcpy_status;
  fake->calls.push_back("memcpy " + std::to_string(bytes));
  return queue(stream, [=] { std::memcpy(to, from, bytes); });
}

cudaError_t memcpy_2d_async(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                            std::size_t rows, cudaMemcpyKind, cudaStream_t stream) {
  fake->calls.push_back("memcpy2d " + std::to_string(width) + " x " + std::to_string(rows));
  return queue(stream, [=] {
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch,
                  width);
    }
  });
}

cudaError_t memset_async(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  fake->calls.push_back("memset " + std::to_string(bytes));
  return queue(stream, [=] { std::memset(to, value, bytes); });
}

// Runs the kernel's own code, one thread after the other. The table is read from device memory when the work runs.
cudaError_t launch_copy(const TableView& table, cudaStream_t stream) {
  fake->calls.push_back("kernel " + std::to_string(table.size().copies));
  return queue(stream, [table] {
    constexpr std::uint32_t threads = 8;
    for (std::uint64_t number = 0; number < table.size().tiles; ++number) {
      std::uint64_t copy = 0;
      memory::Tile tile;
      memory::find_tile(table, number, copy, tile);
      for (std::uint32_t thread = 0; thread < threads; ++thread) memory::copy_tile(tile, thread, threads);
    }
  });
}

cudaError_t launch_digest(const TableView& table, Digest128* leaves, Digest128* digests, cudaStream_t stream) {
  fake->calls.push_back("digest " + std::to_string(table.size().copies));
  return queue(stream, [=] {
    for (std::uint64_t i = 0; i < table.size().leaves; ++i) leaves[i] = {.low = ~0ull, .high = ~0ull};
    for (std::uint64_t i = 0; i < table.size().copies; ++i) {
      digests[i] = {.low = static_cast<std::uint64_t>(*table.source_of(table.copies()[i])),
                    .high = table.copies()[i].runs};
    }
  });
}

cudaError_t launch_fill(const memory::ValueView& values, cudaStream_t stream) {
  return queue(stream, [values] {
    for (std::uint64_t chunk = 0; chunk < values.chunks(); ++chunk) memory::fill_chunk(values, chunk, 0, 1);
  });
}

cudaError_t launch_count_wrong(const memory::ValueView& values, std::uint64_t* wrong, cudaStream_t stream) {
  return queue(stream, [=] {
    for (std::uint64_t chunk = 0; chunk < values.chunks(); ++chunk) {
      *wrong += memory::count_wrong_of_chunk(values, chunk, 0, 1);
    }
  });
}

// Answers queries about the fake's chunks.
std::uint64_t answer_to(CUpointer_attribute attribute, std::uint64_t chunk) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return CU_MEMORYTYPE_DEVICE;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_MAPPED: return 1;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return fake->chunks_start;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return fake->chunk_count * FakeCuda::chunk_bytes;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return fake->chunks_start + chunk * FakeCuda::chunk_bytes;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return FakeCuda::chunk_bytes;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return fake->legacy_ipc ? 1 : 0;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return fake->gpu_direct ? 1 : 0;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return fake->handle_types;
    default: return 0;
  }
}

CUresult pointer_get_attributes(unsigned count, CUpointer_attribute* attributes, void** answers, CUdeviceptr address) {
  if (fake->broken != cudaSuccess) return static_cast<CUresult>(fake->broken);
  const std::uint64_t chunk = (address - fake->chunks_start) / FakeCuda::chunk_bytes;
  if (address < fake->chunks_start || chunk >= fake->chunk_count) return fake->stranger_status;
  for (unsigned i = 0; i < count; ++i) {
    const std::uint64_t value = answer_to(attributes[i], chunk);
    if (value != 0) std::memcpy(answers[i], &value, sizeof(value));
  }
  return CUDA_SUCCESS;
}

CUresult called_driver() {
  return static_cast<CUresult>(called());
}

// Descriptors are real: each belongs to a file that contains its number.
CUresult mem_export(void* descriptor, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long) {
  const int opened = ::memfd_create("chunk", 0);
  std::memcpy(descriptor, &opened, sizeof(opened));
  return called_driver();
}

CUresult mem_map(CUdeviceptr address, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle handle,
                 unsigned long long) {
  if (fake->mappings_left-- == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (bytes != FakeCuda::chunk_bytes) fake->mistakes.emplace_back("a part of a chunk is mapped");
  fake->mapped.emplace_back(handle, address);
  return called_driver();
}

void add_ipc(memory::cuda::Api& api) {
  api.ipc_get_mem_handle = [](CUipcMemHandle* handle, CUdeviceptr address) {
    std::memcpy(handle, &address, sizeof(address));
    return called_driver();
  };
  api.ipc_open_mem_handle = [](CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
    std::memcpy(address, &handle, sizeof(*address));
    fake->legacy_open = true;
    return called_driver();
  };
  api.ipc_close_mem_handle = [](CUdeviceptr) { return fake->legacy_open = false, called_driver(); };
  api.mem_retain = [](CUmemGenericAllocationHandle*, void*) { return ++fake->retained_handles, called_driver(); };
  api.mem_release = [](CUmemGenericAllocationHandle) { return --fake->retained_handles, called_driver(); };
  api.mem_export = &mem_export;
  api.mem_import = [](CUmemGenericAllocationHandle* handle, void* descriptor, CUmemAllocationHandleType) {
    *handle = reinterpret_cast<std::uintptr_t>(descriptor);
    return ++fake->retained_handles, called_driver();
  };
  api.mem_address_reserve = [](CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
    *address = 1ull << 40;
    fake->reserved_bytes = bytes;
    return called_driver();
  };
  api.mem_address_free = [](CUdeviceptr, std::size_t bytes) {
    if (!fake->mapped.empty()) fake->mistakes.emplace_back("addresses are freed that are mapped");
    return fake->reserved_bytes -= bytes, called_driver();
  };
  api.mem_map = &mem_map;
  api.mem_unmap = [](CUdeviceptr address, std::size_t) {
    std::erase_if(fake->mapped, [=](const auto& one) { return one.second == address; });
    return called_driver();
  };
  api.mem_set_access = [](CUdeviceptr, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
    fake->accessible_from.clear();
    for (std::size_t i = 0; i < count; ++i) fake->accessible_from.push_back(access[i].location.id);
    if (bytes != fake->reserved_bytes || access->location.id != fake->contexts.back()) {
      fake->mistakes.emplace_back("access is given to another device, or not to all");
    }
    return called_driver();
  };
}

void add_nic_access(memory::cuda::Api& api) {
  api.device_attribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
    const auto known = fake->attributes.find(attribute);
    if (known == fake->attributes.end()) return CUDA_ERROR_INVALID_VALUE;
    return *value = known->second, CUDA_SUCCESS;
  };
  api.primary_context_get_state = [](CUdevice device, unsigned*, int* active) {
    *active = fake->retained.contains(device) || fake->contexts_elsewhere.contains(device) ? 1 : 0;
    return CUDA_SUCCESS;
  };
  api.pointer_set_attribute = [](const void*, CUpointer_attribute attribute, CUdeviceptr address) {
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) fake->mistakes.emplace_back("another attribute is set");
    fake->synchronised.push_back(address);
    return called() == cudaSuccess ? fake->synchronise_status : called_driver();
  };
  api.flush_remote_writes = [](CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope) {
    if (called() == cudaSuccess) fake->flushed.push_back(fake->contexts.back());
    return called_driver();
  };
}

}  // namespace

FakeCuda::FakeCuda(int count) : devices(count) {
  fake = this;
}

FakeCuda::~FakeCuda() {
  for (Stream* stream : streams) delete stream;
  for (Event* event : events) delete event;
  fake = nullptr;
}

void FakeCuda::run() {
  for (Stream* stream : streams) test::run(*stream);
}

memory::cuda::Api FakeCuda::api() const {
  memory::cuda::Api api;
  api.get_error_name = &name;
  api.get_error_string = &name;
  api.get_last_error = [] { return cudaSuccess; };
  api.runtime_get_version = [](int* version) { return *version = 13000, cudaSuccess; };
  api.driver_get_version = [](int* version) { return *version = fake->driver_version, cudaSuccess; };
  api.get_device_count = [](int* count) { return *count = fake->devices, fake->count_status; };
  api.get_device_properties = &properties;
  api.device_get_attribute = [](int* value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrMemoryClockRate ? fake->memory_clock_khz : 5120;  // else the bus width in bits
    return fake->memory_clock_khz == 0 ? cudaErrorInvalidValue : cudaSuccess;
  };
  api.device_can_access_peer = [](int* can, int, int) {
    return *can = fake->peer_status != cudaErrorPeerAccessUnsupported, cudaSuccess;
  };
  api.device_enable_peer_access = [](int, unsigned) { return called(), fake->peer_status; };
  api.device_malloc = [](void** address, std::size_t bytes) { return allocate(fake->device_memory, address, bytes); };
  api.device_free = [](void* address) { return free(fake->device_memory, address); };
  api.host_alloc = [](void** address, std::size_t bytes, unsigned) {
    return allocate(fake->host_memory, address, bytes);
  };
  api.host_free = [](void* address) { return free(fake->host_memory, address); };
  api.stream_create = &stream_create;
  api.stream_destroy = &stream_destroy;
  api.stream_synchronize = [](cudaStream_t stream) { return test::run(*stream_of(stream)), fake->broken; };
  api.stream_wait_event = &stream_wait_event;
  api.stream_add_callback = &stream_add_callback;
  api.event_create = &event_create;
  api.event_record = &event_record;
  api.event_query = &event_query;
  api.event_destroy = &event_destroy;
  api.memcpy_async = &memcpy_async;
  api.memcpy_2d_async = &memcpy_2d_async;
  api.memset_async = &memset_async;
  api.device_get = [](CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; };
  api.primary_context_retain = [](CUcontext* context, CUdevice device) {
    if (!fake->retained.insert(device).second) fake->mistakes.emplace_back("a context that is retained twice");
    *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
    return CUDA_SUCCESS;
  };
  api.context_push = [](CUcontext context) {
    fake->contexts.push_back(static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1);
    return CUDA_SUCCESS;
  };
  api.context_pop = [](CUcontext*) { return fake->contexts.pop_back(), CUDA_SUCCESS; };
  api.pointer_get_attributes = &pointer_get_attributes;
  add_ipc(api);
  add_nic_access(api);
  api.launch_copy = &launch_copy;
  api.launch_digest = &launch_digest;
  api.launch_fill = &launch_fill;
  api.launch_count_wrong = &launch_count_wrong;
  return api;
}

}  // namespace shardwire::test
