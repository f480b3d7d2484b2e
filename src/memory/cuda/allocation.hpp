// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memory/device.hpp"
#include "support/function_ref.hpp"

// Interprets the driver's answers about a pointer. Plain values: testable without CUDA headers or a driver.
namespace shardwire::memory::cuda {

/// The driver's facts about the memory at one address; zeros if unknown.
struct PointerFacts {
  enum class Type : std::uint32_t { none = 0, host = 1, device = 2, array = 3, unified = 4 };  // numbers: CUmemorytype

  Type type = Type::none;
  int device = 0;
  bool managed = false;
  bool mapped = false;            ///< memory is mapped at the address; a range may be only reserved
  std::uint64_t range_start = 0;  ///< of the addresses that were reserved together
  std::uint64_t range_bytes = 0;
  std::uint64_t mapping_start = 0;  ///< of the chunk; zeros: unknown to an old driver; the range is one chunk
  std::uint64_t mapping_bytes = 0;
  std::uint64_t buffer = 0;        ///< number of the allocation, never reused
  std::uint64_t block = 0;         ///< number of the memory behind a chunk
  std::uint64_t handle_types = 0;  ///< bits: possible export handles
  std::uint64_t pool = 0;          ///< pool that it was allocated from, if any
  bool legacy_ipc = false;
  bool gpu_direct = false;
};

/// Facts about one address: one query of the driver.
using AskDriver = support::FunctionRef<PointerFacts(std::uint64_t address)>;

/// Addresses whose memory was mapped in one call.
struct Chunk {
  std::uint64_t start = 0;
  std::uint64_t bytes = 0;

  [[nodiscard]] std::uint64_t end() const { return start + bytes; }
  [[nodiscard]] bool contains(std::uint64_t address) const { return address >= start && address - start < bytes; }
};

struct FoundAllocation {
  DeviceAllocation allocation;
  std::vector<Chunk> chunks;  ///< side by side
};

/// As DeviceRuntime::find().
std::optional<FoundAllocation> find_allocation(AskDriver ask, std::uint64_t address, ByteCount bytes, int device_count);

}  // namespace shardwire::memory::cuda
