// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/error.hpp"

namespace shardwire::memory::cuda {

/// What a status of CUDA means for the caller. The runtime's (cudaError_t) and the driver's (CUresult) are the same numbers.
ErrorCode code_of(int status);
/// Whether the context is broken for good with it: from then on every call on the device says the same.
bool is_sticky(int status);

}  // namespace shardwire::memory::cuda
