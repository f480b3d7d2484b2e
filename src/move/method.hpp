// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/ledger.hpp"
#include "move/rate_limiter.hpp"
#include "move/requests.hpp"
#include "move/sizing.hpp"
#include "move/tally.hpp"
#include "transport/transport.hpp"
#include "wire/payload_header.hpp"

namespace shardwire::move {

/// Limits of the requests to one peer.
struct PeerLimits {
  ByteCount max_pack_bytes = 0;        ///< per packed request
  std::uint64_t first_request = 0;     ///< request numbers start here: no other peer or engine has them
  std::size_t max_ranges = 1;          ///< per list of reads
  ByteCount max_read_bytes = 0;        ///< per list of reads
  int max_reads = 0;                   ///< lists under way
  std::size_t max_message_ranges = 1;  ///< per message
};

/// A request whose answer has not arrived completely.
class OpenRequest {
 public:
  virtual ~OpenRequest() = default;
  [[nodiscard]] virtual std::uint32_t peer() const = 0;
  /// A payload for this request; false if it expects none.
  virtual bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming) = 0;
  /// The request's peer has been dropped: parts that have not begun to arrive will not.
  virtual void drop() = 0;
};

/// State shared by the methods of one restore.
struct Shared {
  memory::CopyQueue& copies;
  Requests& requests;
  Events& events;
  RateLimiter rate_limiter;  ///< remote bytes only
  Tally tally;
  Ledger ledger{};
  Depths depths{};               ///< of requests to one peer
  ByteCount gathered_bytes = 0;  ///< maximum of a request whose answer is gathered
  bool digests = false;          ///< every part is digested at the destination and compared with its source

  struct Peer {
    PeerLimits limits;
    bool dropped = false;
    bool keeps_mapped = false;               ///< although dropped, its mapped memory is read on
    std::vector<TransferPart> unfinished{};  ///< returned by Engine::drop()
  };
  std::vector<Peer> peers{};
  std::vector<std::shared_ptr<const std::vector<Transfer>>> transfers{};  // owners: see restore::RestoreOperation
  std::map<std::uint64_t, std::shared_ptr<OpenRequest>> open{};           // by number; owners: this and completions
  double digest_seconds = 0;                                              ///< spent by workers on digests
  bool stopped = false;

  /// Gives the request its number, before it is sent.
  std::uint64_t add(std::shared_ptr<OpenRequest> request) {
    const std::uint64_t number = peers.at(request->peer()).limits.first_request++;
    open.emplace(number, std::move(request));
    return number;
  }
  /// The request has been answered completely.
  void over(std::uint32_t peer, std::uint64_t number) {
    if (open.erase(number) > 0) requests.forget(peer, number);
  }

  [[nodiscard]] bool dropped(std::uint32_t peer) const { return peers.at(peer).dropped; }
  /// The peer's mapped memory is read no more either.
  [[nodiscard]] bool dropped_mapped(std::uint32_t peer) const {
    return peers.at(peer).dropped && !peers.at(peer).keeps_mapped;
  }
  /// Parts of a dropped peer, or of an operation that has failed, once no operation writes there any more.
  void give_back(std::uint32_t peer, std::span<const TransferPart> parts) {
    auto& unfinished = peers.at(peer).unfinished;
    for (const TransferPart& part : parts) tally.dropped(*part.transfer, part.bytes());
    unfinished.insert(unfinished.end(), parts.begin(), parts.end());
  }

  /// Runs code that may throw inside a completion, which has no caller to catch it. False if it threw: the restore has
  /// failed.
  template <typename Body>
  bool guarded(Body body) {
    try {
      body();
      return true;
    } catch (const std::exception&) {
      events.failed(std::current_exception());
      return false;
    }
  }

  /// A large restore would only displace everything else from the caches; a small one is likely to be used at once.
  [[nodiscard]] memory::Stores stores() const {
    constexpr ByteCount min_streamed_restore = 16u << 20;
    return tally.expected_bytes() >= min_streamed_restore ? memory::Stores::streaming : memory::Stores::cached;
  }
};

/// One transfer method: takes transfers, posts them part by part, never blocks.
class MethodEngine {
 public:
  virtual ~MethodEngine() = default;
  virtual void add(const Transfer& transfer) = 0;
  /// Posts one part or a few; false if nothing can be posted now (nothing left, no slot, rate limit).
  virtual bool post(RateLimiter::WallClock::time_point now) = 0;
  /// True if this method will not touch the destination any more unless further parts are posted.
  [[nodiscard]] virtual bool idle() const = 0;
  /// Removes the transfers that wait for this peer.
  virtual std::vector<TransferPart> drop(std::uint32_t peer) = 0;
  /// Whether the fabric may be writing bytes of this peer into the destination.
  [[nodiscard]] virtual bool writes_from(std::uint32_t) const { return false; }
  /// Ends work in flight that nothing else ends. Nothing more is posted.
  virtual void stop() {}
};

/// local or mapped: source bytes are directly addressable.
std::unique_ptr<MethodEngine> make_in_place(std::shared_ptr<Shared> shared, Method method);
class StagingPool;
/// read and sieved_read: one-sided reads into place, or into staging where they cross gaps.
std::unique_ptr<MethodEngine> make_reads(std::shared_ptr<Shared> shared, StagingPool& pool);
/// collective: all transfers are handed over to rounds, of which other members and other restores take part as well.
/// `rounds`: null if there are none. Requires: transfers are added before the first post().
std::unique_ptr<MethodEngine> make_collective(std::shared_ptr<Shared> shared, CollectiveRounds* rounds);

}  // namespace shardwire::move
