// SPDX-License-Identifier: Apache-2.0
#include "transport/device_use.hpp"

#include "memory/device.hpp"

namespace shardwire::transport {

// Who has no use for a device is spared the driver, which takes memory on each of them.
std::string why_no_device_memory() {
  if (!memory::devices_in_use()) return "this process uses no device, and maps no memory of one";
  const memory::FoundRuntime found = memory::device_runtime();
  return found.runtime ? std::string() : found.why_not;
}

}  // namespace shardwire::transport
