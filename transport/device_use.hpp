// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>

#include "memory/device.hpp"
#include "shardwire/error.hpp"
#include "transport/memory.hpp"

namespace shardwire::transport {

/// Whether this process maps memory of devices. Empty: it does; else why not, for people.
std::string why_no_device_memory();

/// The allocation that the memory lies in, all of it. Errors: throws Error{invalid_argument} where there is no such (any more).
// Here whole: modules of fabrics have no object code of the others.
inline memory::DeviceAllocation allocation_around(const memory::DeviceRuntime& runtime, const Memory& memory) {
  const auto found = runtime.find(memory.address, memory.bytes);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.address);
  const auto first = found ? reinterpret_cast<std::uintptr_t>(found->address) : 0;
  if (!found || found->device != memory.place.device) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} bytes at {:#x} are no memory of device {} (any more)",
                                                         memory.bytes, begin, memory.place.device));
  }
  if (begin < first || begin - first > found->bytes || memory.bytes > found->bytes - (begin - first)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} bytes at {:#x} are not all of one allocation", memory.bytes, begin));
  }
  return *found;
}

}  // namespace shardwire::transport
