// SPDX-License-Identifier: Apache-2.0
#include "transport/module.hpp"

#include "support/module_build.hpp"

namespace shardwire::transport::libfabric {

Viability probe(Asked asked);
std::unique_ptr<Fabric> open(FindDevices find_devices);

}  // namespace shardwire::transport::libfabric

extern "C" {

[[gnu::visibility("default")]] const char* shardwire_module_build() {
  return shardwire::support::module_build;
}

[[gnu::visibility("default")]] const void* shardwire_module_table() {
  using namespace shardwire::transport;
  static constexpr FabricModule table{libfabric::probe, libfabric::open};
  return &table;
}

}  // extern "C"
