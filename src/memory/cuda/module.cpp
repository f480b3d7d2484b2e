// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/api.hpp"
#include "memory/cuda/runtime.hpp"
#include "memory/device_module.hpp"
#include "shardwire/error.hpp"
#include "support/module_build.hpp"

namespace shardwire::memory::cuda {
namespace {

FoundRuntime find(MakeTrial make_trial) {
  try {
    return find_runtime(real_api(), &look_up_driver, make_trial);
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

constexpr DeviceModule table{find};

}  // namespace
}  // namespace shardwire::memory::cuda

extern "C" {

[[gnu::visibility("default")]] const char* shardwire_module_build() {
  return shardwire::support::module_build;
}

[[gnu::visibility("default")]] const void* shardwire_module_table() {
  return &shardwire::memory::cuda::table;
}

}  // extern "C"
