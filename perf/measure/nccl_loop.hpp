// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "perf/measure/setup.hpp"
#include "shardwire/types.hpp"

namespace shardwire::perf {

/// What one member sends and receives in a group that brings each target as many bytes from each source as a restore does.
struct NcclOrder {
  struct Part {
    int member = 0;
    ByteCount at = 0;  ///< in the memory of this member that is sent from, or received into
    ByteCount bytes = 0;
  };
  std::vector<Part> sends;
  std::vector<Part> receives;
  std::vector<Part> own;  ///< received from itself, from the start of what is sent from; at most one
};
/// `held_bytes`: that the member can send from. What targets get lies side by side. Requires: a member holds what it sends to one.
NcclOrder nccl_order_of(const Setup& setup, const Case& job, int member, ByteCount held_bytes);

/// Sends and receives of NCCL in one group after another, on a communicator that blocks, and nothing of ours in between: what rounds
/// of an exchange are measured beside.
class NcclLoop {
 public:
  virtual ~NcclLoop() = default;
  /// All in one group; waits. What stays is copied by the device. Both are memory of the loop's device.
  /// Errors: throws Error{transport_failed}, and as memory::DeviceStream.
  virtual void exchange(const NcclOrder& order, const std::byte* held, std::byte* wanted) = 0;
};

/// For all members of one loop. Errors: as open_nccl_loop().
Bytes make_nccl_loop_id();
/// Waits for the others. Errors: throws Error{unsupported} where there is no NCCL, Error{transport_failed} when it refuses.
std::unique_ptr<NcclLoop> open_nccl_loop(const Bytes& id, int member, int members, int device);

}  // namespace shardwire::perf
