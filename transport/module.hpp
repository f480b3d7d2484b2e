// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/transport.hpp"

namespace shardwire::transport {

/// What the module of an external fabric gives (support/module.hpp). Faults cross as Error, as they do inside the library:
/// exceptions are matched by the name of their type.
struct FabricModule {
  Viability (*probe)(Asked asked);
  std::unique_ptr<Fabric> (*open)();
};

}  // namespace shardwire::transport
