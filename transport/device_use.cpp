// SPDX-License-Identifier: Apache-2.0
#include "transport/device_use.hpp"

#include "memory/device.hpp"

namespace shardwire::transport {

// Do not load the driver in a process that uses no device: it takes memory on every device.
std::string why_no_device_memory() {
  if (!memory::devices_in_use()) return "this process uses no device, and maps no memory of one";
  const memory::FoundRuntime found = memory::device_runtime();
  return found.runtime ? std::string() : found.why_not;
}

}  // namespace shardwire::transport
