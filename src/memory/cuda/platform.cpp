// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/platform.hpp"

#include <fmt/core.h>

#include "memory/cuda/nic_access.hpp"
#include "memory/cuda/status.hpp"

namespace shardwire::memory::cuda {

void Platform::note(int status) {
  int none = 0;
  if (is_sticky(status)) failure_.compare_exchange_strong(none, status);
}

void Platform::check(int status, const char* operation) {
  if (status == cudaSuccess) return;
  note(status);
  api_.get_last_error();  // clears the thread's error, which the next kernel launch would otherwise report
  require_working();
  const auto named = static_cast<cudaError_t>(status);
  throw Error(code_of(status), fmt::format("{}: {} ({}, CUDA status {})", operation, api_.get_error_string(named),
                                           api_.get_error_name(named), status));
}

void Platform::require_working() const {
  const int failure = failure_.load();
  if (failure == cudaSuccess) return;
  const auto named = static_cast<cudaError_t>(failure);
  throw Error(ErrorCode::transport_failed,
              fmt::format("CUDA has failed in this process, and works on no device any more: {} ({}, status {})",
                          api_.get_error_string(named), api_.get_error_name(named), failure));
}

Error Platform::error_in_callback(int status) {
  note(status);
  return {is_sticky(status) ? ErrorCode::transport_failed : code_of(status),
          fmt::format("work on a device has failed (CUDA status {})", status)};
}

CUcontext Platform::context(int device) {
  const std::lock_guard lock(mutex_);
  if (const auto known = contexts_.find(device); known != contexts_.end()) return known->second;
  CUdevice handle{};
  check(api_.device_get(&handle, device), "cuDeviceGet");
  CUcontext context = nullptr;
  check(api_.primary_context_retain(&context, handle), "cuDevicePrimaryCtxRetain");
  contexts_.emplace(device, context);
  return context;
}

int Platform::active_device() {
  {
    const std::lock_guard lock(mutex_);
    if (!contexts_.empty()) return contexts_.begin()->first;
  }
  int count = 0;
  check(api_.get_device_count(&count), "cudaGetDeviceCount");
  for (int device = 0; device < count; ++device) {
    if (has_context(*this, device)) return device;
  }
  return -1;
}

void Platform::add_host_memory(const std::byte* address, ByteCount bytes) {
  const std::lock_guard lock(mutex_);
  host_memory_.emplace(address, bytes);
}

void Platform::remove_host_memory(const std::byte* address) {
  const std::lock_guard lock(mutex_);
  host_memory_.erase(address);
}

bool Platform::is_host_memory(const std::byte* address) const {
  const std::lock_guard lock(mutex_);
  auto next = host_memory_.upper_bound(address);
  if (next == host_memory_.begin()) return false;
  --next;
  return static_cast<ByteCount>(address - next->first) < next->second;
}

CurrentContext::CurrentContext(Platform& platform, int device) : api_(platform.api()) {
  platform.check(api_.context_push(platform.context(device)), "cuCtxPushCurrent");
}

CurrentContext::~CurrentContext() {
  CUcontext ours = nullptr;
  api_.context_pop(&ours);
}

CurrentContext enter(Platform& platform, int device) {
  platform.require_working();
  return {platform, device};
}

}  // namespace shardwire::memory::cuda
