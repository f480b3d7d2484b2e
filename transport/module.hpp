// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/device.hpp"
#include "transport/transport.hpp"

namespace shardwire::transport {

/// Finds the devices of this process, or the reason why there are none. The library passes it in, because a module
/// contains no code of the library.
using FindDevices = memory::FoundRuntime (*)();

/// The interface of an external fabric's module (support/module.hpp). Faults cross as Error, as inside the library:
/// exceptions are matched by the name of their type.
struct FabricModule {
  Viability (*probe)(Asked asked);
  std::unique_ptr<Fabric> (*open)(FindDevices find_devices);
};

}  // namespace shardwire::transport
