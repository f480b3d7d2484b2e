// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/device.hpp"

namespace shardwire::memory {

/// What a module with a device runtime gives (support/module.hpp).
struct DeviceModule {
  FoundRuntime (*find)();
};

}  // namespace shardwire::memory
