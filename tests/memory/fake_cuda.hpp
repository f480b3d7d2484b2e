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

/// Functions of CUDA over ordinary memory. A stream does nothing before it is told to, or somebody waits for it. What is called with
/// the wrong context, or freed while it may be used, is a mistake.
/// Threads: one.
class FakeCuda {
 public:
  explicit FakeCuda(int devices = 2);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  [[nodiscard]] memory::cuda::Api api() const;

  /// What is queued in all streams.
  void run();
  /// From now on the device is broken: work ends with it, and every call says it.
  void break_with(cudaError_t status) { broken = status; }

  int devices;
  int driver_version = 13000;
  cudaError_t count_status = cudaSuccess;
  cudaError_t broken = cudaSuccess;
  cudaError_t memcpy_status = cudaSuccess;
  CUresult stranger_status = CUDA_SUCCESS;  ///< of addresses that are nothing of CUDA's
  std::size_t memory_left = ~std::size_t{0};
  int memory_clock_khz = 2'000'000;  ///< 0: nobody says

  /// Memory of device 1 in chunks of 1 MiB from here on, if any; it is not there to be used.
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
  std::vector<int> accessible_from{};  // devices that the last mapping of chunks was opened to

  // Of GPUDirect: what devices say of themselves, and what was done.
  std::map<CUdevice_attribute, int> attributes;  ///< of every device; one that is not here is not known
  std::set<int> contexts_elsewhere;              ///< devices whose context somebody else has made
  std::vector<std::uint64_t> synchronised;       ///< addresses whose copies wait
  CUresult synchronise_status = CUDA_SUCCESS;
  std::vector<int> flushed;  ///< devices, once for each time

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
  std::vector<std::string> calls;  ///< that move bytes or launch kernels
  std::vector<std::string> mistakes;
};

}  // namespace shardwire::test
