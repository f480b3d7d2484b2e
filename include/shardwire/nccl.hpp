// SPDX-License-Identifier: Apache-2.0
#pragma once

// Communicators of NCCL programs. Not part of shardwire/shardwire.hpp: includes <nccl.h> of the program's NCCL. The library
// itself does not depend on it.

#include <nccl.h>

namespace shardwire {

/// A communicator for ExchangeOptions::communicator.
/// Ownership: borrowed, as that field states.
inline void* as_nccl(ncclComm_t communicator) noexcept {
  return communicator;
}

}  // namespace shardwire
