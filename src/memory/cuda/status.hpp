// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/error.hpp"

namespace shardwire::memory::cuda {

/// The error code for a CUDA status. The runtime (cudaError_t) and the driver (CUresult) use the same numbers.
ErrorCode code_of(int status);
/// Whether the status breaks the context permanently: from then on every call on the device returns it.
bool is_sticky(int status);

}  // namespace shardwire::memory::cuda
