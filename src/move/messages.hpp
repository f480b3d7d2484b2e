// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "move/peer_queues.hpp"
#include "move/staging.hpp"
#include "wire/payload_header.hpp"

namespace shardwire::move {

/// A way whose bytes come as messages that were asked for. Pull only: nothing arrives that was not asked for.
class MessageWay : public WayEngine {
 public:
  /// Most payload that a request to `peer` may ask for. Requires: called before transfers of that peer are added.
  virtual void limit(std::uint32_t peer, ByteCount bytes) = 0;
};

/// packed: the source packs the boxes that a request names and sends them as one message; the payload lands in a slot of
/// ours and is unpacked from there. A request is made only when a slot for its answer is at hand, so staging never exceeds
/// the pool on either side.
std::unique_ptr<MessageWay> make_packed(std::shared_ptr<Shared> shared, StagingPool& pool);
/// A message this long runs at the full speed of every fabric, and a restore that is stopped waits for no more of them.
inline constexpr ByteCount straight_message_bytes = 4u << 20;
/// straight, over paths whose messages are one range each: a request names parts that lie in one piece on both sides, and each comes as a message of its own, from where
/// it lies into where it belongs. No staging; the fabric copies as often as it must.
std::unique_ptr<MessageWay> make_straight(std::shared_ptr<Shared> shared);

/// straight, over paths whose messages take lists: a request names boxes, and they come as one message that is gathered from
/// where they lie and scattered into where they belong. No staging.
std::unique_ptr<MessageWay> make_gathered(std::shared_ptr<Shared> shared);

inline bool same(const memory::Digest128& mine, const wire::BoxDigest& theirs) {
  return mine.low == theirs.low && mine.high == theirs.high;
}

}  // namespace shardwire::move
