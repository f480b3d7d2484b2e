// SPDX-License-Identifier: Apache-2.0
#include "transport/device_use.hpp"

#include "memory/device.hpp"

namespace shardwire::transport {

// Do not load the driver in a process that uses no device: it takes memory on every device.
support::Fallback why_no_device_memory() {
  if (!memory::devices_in_use()) {
    return {FallbackReason::no_device, "this process uses no device, and maps no memory of one"};
  }
  const memory::FoundRuntime found = memory::device_runtime();
  return found.runtime ? support::Fallback{} : support::Fallback{FallbackReason::no_device, found.why_not};
}

}  // namespace shardwire::transport
