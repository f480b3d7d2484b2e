// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>

#include "move/staging.hpp"
#include "move/way.hpp"
#include "transport/transport.hpp"

namespace shardwire::move {

/// packed: the source packs the boxes that a request names and sends them as one message; the payload lands in a slot of
/// ours and is unpacked from there. Pull only: nothing arrives that was not asked for, and a request is made only when a
/// slot for its answer is at hand, so staging never exceeds the pool on either side.
class PackedWay final : public Way {
 public:
  /// Sends a request to a peer; the answer comes as a message whose header is the request number.
  using Send = std::function<void(std::uint32_t peer, std::uint64_t request, std::vector<PackPart> parts)>;

  PackedWay(std::shared_ptr<Shared> shared, StagingPool& pool, std::uint64_t first_request, Send send);

  /// Most payload that a request to `peer` may ask for. Requires: called before transfers of that peer are added.
  void limit(std::uint32_t peer, ByteCount bytes);
  void add(Transfer transfer) override;
  bool post(Pacer::Clock::time_point now) override;
  [[nodiscard]] bool idle() const override { return unpacking_ == 0; }
  /// A payload for one of our requests; false when it is not ours. After stop, payloads are discarded.
  bool payload(std::uint64_t request, transport::Incoming& incoming);
  /// Whose request this is; empty when it is not ours or answered.
  [[nodiscard]] std::optional<std::uint32_t> peer_of(std::uint64_t request) const;

 private:
  struct Piece {
    std::shared_ptr<const Transfer> transfer;  // owners: the queue and the requests in flight
    Box box;
  };
  struct Queue {
    ByteCount limit_bytes = 0;
    std::deque<Transfer> transfers;
    std::deque<Piece> pieces;
    int in_flight = 0;
  };
  struct Request {
    std::uint32_t peer = 0;
    std::vector<Piece> pieces;
    ByteCount bytes = 0;
    Slot slot;
  };

  bool refill(Queue& queue);
  bool post_to(std::uint32_t peer, Pacer::Clock::time_point now);
  void unpack(std::shared_ptr<Request> request);

  std::shared_ptr<Shared> shared_;  // owners: the engine and its ways
  StagingPool& pool_;
  std::uint64_t next_request_;
  Send send_;
  std::vector<Queue> queues_;                                   // by peer
  std::size_t turn_ = 0;                                        // peer that is served next
  std::map<std::uint64_t, std::shared_ptr<Request>> requests_;  // owners: this map and completions in flight
  int unpacking_ = 0;
};

}  // namespace shardwire::move
