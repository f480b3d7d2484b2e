// SPDX-License-Identifier: Apache-2.0
#pragma once

// Events of CUDA programs. Not part of shardwire/shardwire.hpp: includes <cuda_runtime_api.h> of the program's CUDA toolkit. The
// library itself does not depend on it.

#include <cuda_runtime_api.h>

namespace shardwire {

/// An event for View::ready_event or DoneEvent::event. Accepts a CUevent of the driver's API too, which is the same type.
/// Ownership: borrowed, as these fields state.
inline void* as_event(cudaEvent_t event) noexcept {
  return event;
}

}  // namespace shardwire
