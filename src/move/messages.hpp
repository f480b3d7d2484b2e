// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "move/peer_queues.hpp"
#include "move/staging.hpp"

namespace shardwire::move {

/// A method whose bytes arrive as requested messages. Pull only: nothing arrives without a request.
class MessageMethod : public MethodEngine {
 public:
  /// Maximum payload of a request to `peer`. Requires: called before transfers of that peer are added.
  virtual void limit(std::uint32_t peer, ByteCount bytes) = 0;
};

/// packed: the source packs the boxes that a request names and sends them as one message; the payload arrives in a
/// local slot and is unpacked from there. A request is made only when a slot for its answer is available, so staging
/// never exceeds the pool on either side.
std::unique_ptr<MessageMethod> make_packed(std::shared_ptr<Shared> shared, StagingPool& pool);
/// A message this long runs at the full speed of every fabric, and a restore that is stopped waits for no longer one.
inline constexpr ByteCount zcopy_message_bytes = 4u << 20;
/// zcopy: the boxes of a request arrive from their source locations at their destinations. No staging; the fabric copies
/// as often as it must. Over paths whose messages take lists (PeerLimits::max_message_ranges), a request is answered by
/// one message, gathered from all its boxes. Over other paths, its boxes are contiguous on both sides, and each arrives
/// as a message of its own.
std::unique_ptr<MessageMethod> make_zcopy(std::shared_ptr<Shared> shared);

}  // namespace shardwire::move
