// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstddef>

#include "memory/cuda/allocation.hpp"

namespace shardwire::memory::cuda {

/// Asks the driver for all facts about a pointer, in one call.
/// Threads: any, once constructed.
class PointerQuery {
 public:
  using Function = CUresult (*)(unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr address);

  /// A driver refuses the whole query if it does not know one attribute; newer attributes are then omitted.
  explicit PointerQuery(Function function);

  /// `status`: the driver's error, else CUDA_SUCCESS; on an error the facts are empty.
  [[nodiscard]] PointerFacts ask(std::uint64_t address, CUresult& status) const;

 private:
  Function function_;
  std::size_t known_;  ///< number of attributes, in the order in which driver versions introduced them
};

}  // namespace shardwire::memory::cuda
