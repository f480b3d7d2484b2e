// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "memory/device.hpp"
#include "shardwire/types.hpp"

namespace shardwire::perf {

/// Parameters of the copies to measure on a device.
struct DeviceTurns {
  int device = 0;
  ByteCount bytes = 1u << 30;         ///< per copy, rounded down to whole runs
  ByteCount host_bytes = 256u << 20;  ///< per copy from or to the host
  std::vector<ByteCount> runs{512, 4u << 10, 64u << 10, 512u << 10, 1u << 20};
  int repeats = 20;
  int in_a_row = 4;  ///< copies that are timed together
  std::string commit{};
};

/// Rows of copies between memory with gaps and dense memory, in the order of `runs`: on the device by a stream as in
/// sessions, and from and to ordinary host memory through pinned slots. Each is compared with plain copies of as many
/// bytes, contiguous, and pinned on the host. The last row is the digest of contiguous bytes. ../README.md describes
/// the fields.
/// Errors: as memory::DeviceRuntime; throws std::runtime_error if the copied bytes are wrong.
std::vector<nlohmann::ordered_json> device_rows(memory::DeviceRuntime& runtime, const DeviceTurns& turns);

}  // namespace shardwire::perf
