// SPDX-License-Identifier: Apache-2.0
#include "memory/device.hpp"

#include <link.h>

#include <cstddef>
#include <mutex>
#include <string_view>
#include <utility>

#include "memory/device_module.hpp"
#include "memory/strided_copy.hpp"
#include "support/module.hpp"

namespace shardwire::memory {

namespace {

StridedCopy make_trial(ByteCount runs, ByteCount run_bytes) {
  const auto rows = static_cast<Extent>(runs);
  const auto bytes = static_cast<Extent>(run_bytes);
  const Box part{{0, 0}, {rows, bytes}};
  return {part, packed(Box{{0, 0}, {rows, 2 * bytes}}), packed(part), 1};
}

FoundRuntime load_cuda() {
  const support::Module module = support::load_module("cuda");
  if (module.table == nullptr) return {nullptr, module.why_not};
  return static_cast<const DeviceModule*>(module.table)->find(&make_trial);
}

struct Chosen {
  std::mutex mutex;                        // guards the following fields
  std::shared_ptr<DeviceRuntime> runtime;  ///< set by a test
  std::optional<FoundRuntime> found;       ///< set after the first query
};

// Never destroyed: threads that copy may outlive static destruction.
Chosen& chosen() {
  static auto& instance = *new Chosen;
  return instance;
}

// Looks through the loaded libraries. dlopen() with RTLD_NOLOAD would search all folders for a library that is not loaded.
bool driver_is_loaded() {
  const auto is_driver = [](dl_phdr_info* library, std::size_t, void*) {
    const std::string_view path(library->dlpi_name);
    return path.substr(path.rfind('/') + 1).starts_with("libcuda.so") ? 1 : 0;
  };
  return ::dl_iterate_phdr(is_driver, nullptr) != 0;
}

}  // namespace

FoundRuntime device_runtime() {
  const std::lock_guard lock(chosen().mutex);
  if (chosen().runtime) return {chosen().runtime, {}};
  if (!chosen().found) chosen().found = load_cuda();
  return *chosen().found;
}

std::shared_ptr<DeviceRuntime> require_device_runtime() {
  const FoundRuntime found = device_runtime();
  if (found.runtime) return found.runtime;
  throw Error(ErrorCode::unsupported, "device memory cannot be copied: " + found.why_not);
}

bool devices_in_use() {
  {
    const std::lock_guard lock(chosen().mutex);
    if (chosen().runtime) return true;
  }
  return driver_is_loaded();
}

void use_device_runtime(std::shared_ptr<DeviceRuntime> runtime) {
  const std::lock_guard lock(chosen().mutex);
  chosen().runtime = std::move(runtime);
}

}  // namespace shardwire::memory
