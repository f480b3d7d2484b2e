// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/allocation.hpp"

#include <fmt/core.h>

#include <utility>

#include "shardwire/error.hpp"

namespace shardwire::memory::cuda {
namespace {

constexpr std::uint64_t posix_descriptor = 1;  // bit of CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

// For cudaMalloc and pools, several allocations may share the mapping; the range belongs to one allocation.
Chunk chunk_of(const PointerFacts& facts) {
  if (facts.mapping_bytes > 0 && !facts.legacy_ipc && facts.pool == 0)
    return {facts.mapping_start, facts.mapping_bytes};
  return {facts.range_start, facts.range_bytes};
}

bool on_device(const PointerFacts& facts) {
  return facts.managed || facts.type == PointerFacts::Type::device || facts.type == PointerFacts::Type::unified;
}

// A different number for different memory, also for the same memory in another order (finalizer of SplitMix64).
std::uint64_t mixed(std::uint64_t number, const PointerFacts& facts) {
  for (const std::uint64_t part : {facts.buffer, facts.block}) {
    number += part + 0x9e3779b97f4a7c15;
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
    number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
    number ^= number >> 31;
  }
  return number;
}

// Memory of a pool is exported together with its pool, which belongs to the pool's creator.
bool exports_descriptors(const PointerFacts& facts) {
  return (facts.handle_types & posix_descriptor) != 0 && facts.pool == 0;
}

// True for memory from cudaMalloc. Mapped memory and pools are opened to each device by their owner, and a device that
// accesses memory not opened to it fails permanently.
bool opens_to_peers(const PointerFacts& facts) {
  return facts.legacy_ipc || facts.managed;
}

void check(const PointerFacts& facts, std::uint64_t address, int device_count) {
  if (facts.type == PointerFacts::Type::array) {
    throw Error(ErrorCode::unsupported, fmt::format("{:#x} is in a CUDA array, whose bytes lie in no order", address));
  }
  if (!facts.mapped || !chunk_of(facts).contains(address)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{:#x} is an address of device {} where no memory is mapped", address, facts.device));
  }
  if (facts.device < 0 || facts.device >= device_count) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{:#x} is memory of device {}, and this process sees {} (CUDA_VISIBLE_DEVICES)", address,
                            facts.device, device_count));
  }
}

}  // namespace

std::optional<FoundAllocation> find_allocation(AskDriver ask, std::uint64_t address, ByteCount bytes,
                                               int device_count) {
  const PointerFacts first = ask(address);
  // Memory unknown to the driver was not allocated by it, or has been freed.
  if (!on_device(first) && first.type != PointerFacts::Type::array) return std::nullopt;
  check(first, address, device_count);
  Chunk whole = chunk_of(first);
  DeviceAllocation found{.device = first.device,
                         .number = mixed(0, first),
                         .managed = first.managed,
                         .legacy_ipc = first.legacy_ipc,
                         .descriptor_ipc = exports_descriptors(first),
                         .gpu_direct = first.gpu_direct,
                         .peer_access = opens_to_peers(first)};
  std::vector<Chunk> chunks{whole};
  const Chunk range{first.range_start, first.range_bytes};
  while (whole.end() - address < bytes && range.contains(whole.end())) {
    const PointerFacts next = ask(whole.end());
    const Chunk chunk = chunk_of(next);
    if (!on_device(next) || !next.mapped || next.device != first.device || chunk.start != whole.end() ||
        chunk.bytes == 0) {
      break;
    }
    whole.bytes += chunk.bytes;
    chunks.push_back(chunk);
    ++found.chunks;
    found.number = mixed(found.number, next);
    found.legacy_ipc = found.legacy_ipc && next.legacy_ipc;
    found.descriptor_ipc = found.descriptor_ipc && exports_descriptors(next);
    found.gpu_direct = found.gpu_direct && next.gpu_direct;
    found.peer_access = found.peer_access && opens_to_peers(next);
  }
  found.address = reinterpret_cast<const std::byte*>(whole.start);
  found.bytes = whole.bytes;
  return FoundAllocation{found, std::move(chunks)};
}

}  // namespace shardwire::memory::cuda
