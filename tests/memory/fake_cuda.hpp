// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memory/cuda/api.hpp"

namespace shardwire::test {

/// CUDA functions over ordinary memory. A stream works only on command, or when a call waits for it. A call in the
/// wrong context, and freeing memory that may be in use, are errors.
/// Threads: one.
class FakeCuda {
 public:
  explicit FakeCuda(int devices = 2);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  [[nodiscard]] memory::cuda::Api api() const;

  /// Runs the queued work of all streams.
  void run();
  /// Breaks the device from now on: work ends with this status, and every call returns it.
  void break_with(cudaError_t status) { broken = status; }

  int devices;
  int driver_version = 13000;
  cudaError_t count_status = cudaSuccess;
  cudaError_t broken = cudaSuccess;
  cudaError_t memcpy_status = cudaSuccess;
  CUresult stranger_status = CUDA_SUCCESS;  ///< for addresses unknown to CUDA
  std::size_t memory_left = ~std::size_t{0};
  int memory_clock_khz = 2'000'000;  ///< 0: unknown

  /// Address of device 1's chunks of 1 MiB, if there are any; the memory cannot be accessed.
  static constexpr std::uint64_t chunk_bytes = 1u << 20;
  std::uint64_t chunks_start = 0;
  std::uint64_t chunk_count = 0;
  bool legacy_ipc = false;
  bool gpu_direct = false;
  std::uint64_t handle_types = 0;
  int retained_handles = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> mapped;  ///< from another process: handle, address
  int mappings_left = 100;
  std::uint64_t reserved_bytes = 0;
  bool legacy_open = false;
  cudaError_t peer_status = cudaSuccess;
  std::vector<int> accessible_from{};  // devices with access to the last mapping of chunks

  // For GPUDirect: attributes of devices, and calls made.
  std::map<CUdevice_attribute, int> attributes;  ///< of every device; others are unknown
  std::set<int> contexts_elsewhere;              ///< devices with a context made by other code
  std::vector<std::uint64_t> synchronised;       ///< addresses with synchronous copies
  CUresult synchronise_status = CUDA_SUCCESS;
  std::vector<int> flushed;  ///< devices, one entry per flush

  struct Stream {
    int device = 0;
    std::deque<std::function<void(cudaError_t)>> work;
  };
  struct Event {
    int pending = 0;
  };
  std::vector<int> contexts;  ///< pushed, innermost last; numbers of devices
  std::set<int> retained;     ///< devices whose primary context was made
  std::map<std::byte*, std::unique_ptr<std::byte[]>> device_memory, host_memory;
  std::set<Stream*> streams;
  std::set<Event*> events;
  unsigned stream_flags = 0;
  std::vector<std::string> calls;  ///< calls that move bytes or launch kernels
  std::vector<std::string> mistakes;
};

}  // namespace shardwire::test
