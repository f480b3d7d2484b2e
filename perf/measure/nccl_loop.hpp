// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "perf/measure/setup.hpp"
#include "shardwire/types.hpp"

namespace shardwire::perf {

/// One member's sends and receives in a group that moves as many bytes from each source to each target as a restore
/// does.
struct NcclOrder {
  struct Part {
    int member = 0;
    ByteCount at = 0;  ///< offset in this member's memory that is sent from, or received into
    ByteCount bytes = 0;
  };
  std::vector<Part> sends;
  std::vector<Part> receives;
  std::vector<Part> own;  ///< received from itself, from the start of the send memory; at most one
};
/// `held_bytes`: size of the member's send memory. Received parts lie side by side. Requires: the memory holds the
/// largest single send.
NcclOrder nccl_order_of(const Setup& setup, const Case& job, int member, ByteCount held_bytes);

/// NCCL sends and receives in one group after another, on a blocking communicator, without our code in between: the
/// reference for rounds of an exchange.
class NcclLoop {
 public:
  virtual ~NcclLoop() = default;
  /// All transfers in one group; waits. The device copies local bytes. Both memories are of the loop's device.
  /// Errors: throws Error{transport_failed}, and as memory::DeviceStream.
  virtual void exchange(const NcclOrder& order, const std::byte* held, std::byte* wanted) = 0;
};

/// For all members of one loop. Errors: as open_nccl_loop().
Bytes make_nccl_loop_id();
/// Waits for the other members. Errors: throws Error{unsupported} if there is no NCCL, Error{transport_failed} if it
/// refuses.
std::unique_ptr<NcclLoop> open_nccl_loop(const Bytes& id, int member, int members, int device);

}  // namespace shardwire::perf
