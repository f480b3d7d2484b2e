// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>

#include "memory/device.hpp"
#include "shardwire/error.hpp"
#include "support/fallback.hpp"
#include "transport/memory.hpp"

namespace shardwire::transport {

/// Empty if this process maps device memory; otherwise the reason.
support::Fallback why_no_device_memory();

/// The whole allocation that contains the memory. Errors: throws Error{invalid_argument} if there is none (any more).
// Defined in the header: modules of fabrics contain no object code of the library.
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
