// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/device.hpp"
#include "transport/transport.hpp"

namespace shardwire::transport {

/// Devices of this process, or why there are none: the library's, which a module has no code of.
using FindDevices = memory::FoundRuntime (*)();

/// What the module of an external fabric gives (support/module.hpp). Faults cross as Error, as they do inside the library:
/// exceptions are matched by the name of their type.
struct FabricModule {
  Viability (*probe)(Asked asked);
  std::unique_ptr<Fabric> (*open)(FindDevices find_devices);
};

}  // namespace shardwire::transport
