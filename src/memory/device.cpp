// SPDX-License-Identifier: Apache-2.0
#include "memory/device.hpp"

#include <mutex>
#include <utility>

namespace shardwire::memory {

namespace {

struct Chosen {
  std::mutex mutex;  // guards what follows
  std::shared_ptr<DeviceRuntime> runtime;
};

// Never destroyed: threads that copy may outlive static destruction.
Chosen& chosen() {
  static auto& instance = *new Chosen;
  return instance;
}

}  // namespace

FoundRuntime device_runtime() {
  const std::lock_guard lock(chosen().mutex);
  if (chosen().runtime) return {chosen().runtime, {}};
  return {nullptr, "this build knows no device memory"};
}

bool devices_in_use() {
  const std::lock_guard lock(chosen().mutex);
  return chosen().runtime != nullptr;
}

void use_device_runtime(std::shared_ptr<DeviceRuntime> runtime) {
  const std::lock_guard lock(chosen().mutex);
  chosen().runtime = std::move(runtime);
}

}  // namespace shardwire::memory
