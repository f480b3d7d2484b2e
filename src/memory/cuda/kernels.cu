// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/kernels.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "memory/device_copy/copy_tile.hpp"
#include "memory/device_copy/lanes_hash.hpp"
#include "memory/device_copy/leaf.hpp"
#include "memory/device_copy/value_box.hpp"

// Distributes the work among threads; the work itself lies in memory/device_copy, where it is tested. Grids are as
// large as the device can run at a time, and take tiles and leaves until none are left.
namespace shardwire::memory::cuda {
namespace {

constexpr int threads_of_copy = 512;
constexpr int min_copy_blocks = 2;  // per multiprocessor: limits registers
constexpr int threads_of_digest = 256;
constexpr int min_digest_blocks = 4;
constexpr int threads_of_values = 256;
constexpr int warps_of_digest = threads_of_digest / hash_lanes;

/// Shared memory for some T, which gets no constructor calls.
template <typename T, int Count>
struct Room {
  alignas(T) unsigned char bytes[Count * sizeof(T)];
  __device__ T& operator[](unsigned index) { return reinterpret_cast<T*>(bytes)[index]; }
};

__global__ void __launch_bounds__(threads_of_copy, min_copy_blocks) copy_tiles(const TableView table) {
  __shared__ Room<Tile, 2> tiles;  // the current tile and the next
  __shared__ std::uint64_t copy;   // of the last one found; used only by the first thread
  std::uint64_t number = blockIdx.x;
  if (number >= table.size().tiles) return;
  if (threadIdx.x == 0) {
    copy = 0;
    find_tile(table, number, copy, tiles[0]);
  }
  __syncthreads();
  for (unsigned current = 0; number < table.size().tiles; current ^= 1) {
    number += gridDim.x;
    if (threadIdx.x == 0 && number < table.size().tiles) find_tile(table, number, copy, tiles[current ^ 1]);
    copy_tile(tiles[current], threadIdx.x, threads_of_copy);
    __syncthreads();
  }
}

/// The operations that hash_stream() needs, for the calling warp.
class WarpLanes {
 public:
  template <typename Body>
  __device__ void each(Body body) {
    body(lane_, state_);
  }
  __device__ void add_up() {
    std::uint64_t more = state_.products + from_lane(state_.words, 1);
    for (unsigned far = xxh3::lanes; far < hash_lanes; far *= 2) more += from_lane(more, far);
    state_.sum += more;
  }
  __device__ void collect(std::uint64_t (&sums)[xxh3::lanes]) const {
    for (unsigned lane = 0; lane < xxh3::lanes; ++lane) {
      sums[lane] = __shfl_sync(all, static_cast<unsigned long long>(state_.sum), static_cast<int>(lane));
    }
  }

 private:
  static constexpr unsigned all = 0xffffffff;
  static __device__ std::uint64_t from_lane(std::uint64_t value, unsigned distance) {
    return __shfl_xor_sync(all, static_cast<unsigned long long>(value), static_cast<int>(distance));
  }

  unsigned lane_ = threadIdx.x % hash_lanes;
  HashLane state_;
};

/// Calls work(number, is_first) in each lane of a warp, for all numbers assigned to this warp.
template <typename Work>
__device__ void for_each_of_warp(std::uint64_t count, Work work) {
  const std::uint64_t warps = std::uint64_t{gridDim.x} * warps_of_digest;
  for (std::uint64_t number = std::uint64_t{blockIdx.x} * warps_of_digest + threadIdx.x / hash_lanes; number < count;
       number += warps) {
    work(number, threadIdx.x % hash_lanes == 0);
  }
}

__global__ void __launch_bounds__(threads_of_digest, min_digest_blocks)
    digest_leaves(const TableView table, Digest128* digests) {
  __shared__ Room<LeafStream, warps_of_digest> streams;
  for_each_of_warp(table.size().leaves, [&](std::uint64_t number, bool is_first) {
    LeafStream& stream = streams[threadIdx.x / hash_lanes];
    if (is_first) stream.find(table, number);
    __syncwarp();
    WarpLanes lanes;
    const Digest128 digest = hash_stream(lanes, stream, stream.length());
    __syncwarp();  // before the first lane finds the next leaf
    if (is_first) digests[number] = digest;
  });
}

__global__ void __launch_bounds__(threads_of_digest, min_digest_blocks)
    digest_roots(const TableView table, const Digest128* leaves, Digest128* digests) {
  for_each_of_warp(table.size().copies, [&](std::uint64_t number, bool is_first) {
    const std::uint64_t first = table.first_leaves()[number];
    const LeafDigests below(leaves + first, table.first_leaves()[number + 1] - first);
    WarpLanes lanes;
    const Digest128 digest = hash_stream(lanes, below, static_cast<std::uint32_t>(below.length()));
    if (is_first) digests[number] = digest;
  });
}

__global__ void __launch_bounds__(threads_of_values) fill_values(const ValueView values) {
  for (std::uint64_t chunk = blockIdx.x; chunk < values.chunks(); chunk += gridDim.x) {
    fill_chunk(values, chunk, threadIdx.x, threads_of_values);
  }
}

__global__ void __launch_bounds__(threads_of_values)
    count_wrong_values(const ValueView values, unsigned long long* wrong) {
  std::uint64_t mine = 0;
  for (std::uint64_t chunk = blockIdx.x; chunk < values.chunks(); chunk += gridDim.x) {
    mine += count_wrong_of_chunk(values, chunk, threadIdx.x, threads_of_values);
  }
  if (mine > 0) atomicAdd(wrong, static_cast<unsigned long long>(mine));
}

/// Number of blocks that the current device runs at a time, limited by the available work.
template <typename Kernel>
cudaError_t count_blocks(Kernel kernel, int threads, std::uint64_t wanted, unsigned& blocks) {
  int device = 0;
  int multiprocessors = 0;
  int resident = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (status == cudaSuccess) {
    status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0);
  }
  const auto most = static_cast<std::uint64_t>(std::max(multiprocessors * resident, 1));
  blocks = static_cast<unsigned>(std::min(most, wanted));
  return status;
}

std::uint64_t blocks_for(std::uint64_t warps) {
  return (warps + warps_of_digest - 1) / warps_of_digest;
}

cudaError_t launch_leaves(const TableView& table, Digest128* leaves, cudaStream_t stream) {
  if (table.size().leaves == 0) return cudaSuccess;
  unsigned blocks = 0;
  const cudaError_t status = count_blocks(digest_leaves, threads_of_digest, blocks_for(table.size().leaves), blocks);
  if (status != cudaSuccess) return status;
  digest_leaves<<<blocks, threads_of_digest, 0, stream>>>(table, leaves);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_copy(const TableView& table, cudaStream_t stream) {
  if (table.size().tiles == 0) return cudaSuccess;
  unsigned blocks = 0;
  const cudaError_t status = count_blocks(copy_tiles, threads_of_copy, table.size().tiles, blocks);
  if (status != cudaSuccess) return status;
  copy_tiles<<<blocks, threads_of_copy, 0, stream>>>(table);
  return cudaGetLastError();
}

cudaError_t launch_fill(const ValueView& values, cudaStream_t stream) {
  if (values.chunks() == 0) return cudaSuccess;
  unsigned blocks = 0;
  const cudaError_t status = count_blocks(fill_values, threads_of_values, values.chunks(), blocks);
  if (status != cudaSuccess) return status;
  fill_values<<<blocks, threads_of_values, 0, stream>>>(values);
  return cudaGetLastError();
}

cudaError_t launch_count_wrong(const ValueView& values, std::uint64_t* wrong, cudaStream_t stream) {
  if (values.chunks() == 0) return cudaSuccess;
  unsigned blocks = 0;
  const cudaError_t status = count_blocks(count_wrong_values, threads_of_values, values.chunks(), blocks);
  if (status != cudaSuccess) return status;
  count_wrong_values<<<blocks, threads_of_values, 0, stream>>>(values, reinterpret_cast<unsigned long long*>(wrong));
  return cudaGetLastError();
}

cudaError_t launch_digest(const TableView& table, Digest128* leaves, Digest128* digests, cudaStream_t stream) {
  if (table.size().copies == 0) return cudaSuccess;
  cudaError_t status = launch_leaves(table, leaves, stream);
  unsigned blocks = 0;
  if (status == cudaSuccess) {
    status = count_blocks(digest_roots, threads_of_digest, blocks_for(table.size().copies), blocks);
  }
  if (status != cudaSuccess) return status;
  digest_roots<<<blocks, threads_of_digest, 0, stream>>>(table, leaves, digests);
  return cudaGetLastError();
}

}  // namespace shardwire::memory::cuda
