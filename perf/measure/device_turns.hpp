// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "memory/device.hpp"
#include "shardwire/types.hpp"

namespace shardwire::perf {

/// What copies of a device are measured with.
struct DeviceTurns {
  int device = 0;
  ByteCount bytes = 1u << 30;         ///< of a copy, rounded down to whole runs
  ByteCount host_bytes = 256u << 20;  ///< of one from or to the host
  std::vector<ByteCount> runs{512, 4u << 10, 64u << 10, 512u << 10, 1u << 20};
  int repeats = 20;
  int in_a_row = 4;  ///< copies that are timed together
  std::string commit{};
};

/// Rows of copies between memory with gaps and dense memory, in the order of `runs`: on the device by a stream as sessions have it, and
/// from and to ordinary memory of the host by way of pinned slots; beside plain copies of as many bytes that are contiguous, and pinned
/// on the host. Then one of the digest of contiguous bytes. ../README.md says what the fields mean.
/// Errors: as memory::DeviceRuntime; throws std::runtime_error when the bytes that have come are not right.
std::vector<nlohmann::ordered_json> device_rows(memory::DeviceRuntime& runtime, const DeviceTurns& turns);

}  // namespace shardwire::perf
