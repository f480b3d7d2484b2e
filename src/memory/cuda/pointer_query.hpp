// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstddef>

#include "memory/cuda/allocation.hpp"

namespace shardwire::memory::cuda {

/// Asks the driver all about a pointer, in one call.
/// Threads: any, once made.
class PointerQuery {
 public:
  using Function = CUresult (*)(unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr address);

  /// A driver refuses the whole question for one attribute that it does not know; those that came later are left out for it then.
  explicit PointerQuery(Function function);

  /// `status`: what the driver says, else CUDA_SUCCESS; facts are then nothing.
  [[nodiscard]] PointerFacts ask(std::uint64_t address, CUresult& status) const;

 private:
  Function function_;
  std::size_t known_;  ///< so many attributes, in the order in which drivers learnt them
};

}  // namespace shardwire::memory::cuda
