// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/kernels.hpp"

#include <cuda_runtime.h>

#include <cstdint>

#include "memory/device_copy/copy_tile.hpp"

namespace shardwire::memory::cuda {
namespace {

constexpr int threads_of_block = 512;
constexpr int blocks_of_processor = 2;

__global__ void copy_tiles(TableView table) {
  __shared__ Tile tile;
  std::uint64_t copy = 0;
  for (std::uint64_t number = blockIdx.x; number < table.size().tiles; number += gridDim.x) {
    if (threadIdx.x == 0) find_tile(table, number, copy, tile);
    __syncthreads();
    copy_tile(tile, threadIdx.x, blockDim.x);
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_copy(const TableView& table, cudaStream_t stream) {
  int device = 0;
  int processors = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  if (const cudaError_t status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
      status != cudaSuccess) {
    return status;
  }
  copy_tiles<<<processors * blocks_of_processor, threads_of_block, 0, stream>>>(table);
  return cudaGetLastError();
}

cudaError_t launch_digest(const TableView&, Digest128*, Digest128*, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // namespace shardwire::memory::cuda
