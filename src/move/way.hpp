// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/pacer.hpp"
#include "move/requests.hpp"
#include "move/sizing.hpp"
#include "move/tally.hpp"
#include "transport/transport.hpp"
#include "wire/payload_header.hpp"

namespace shardwire::move {

/// What may be asked of one peer.
struct PeerLimits {
  ByteCount max_pack_bytes = 0;        ///< of one packed request
  std::uint64_t first_request = 0;     ///< requests are numbered from here, so that no other peer can answer them
  std::size_t max_ranges = 1;          ///< of one list of reads
  ByteCount max_read_bytes = 0;        ///< of one list of reads
  int max_reads = 0;                   ///< lists under way
  std::size_t max_message_ranges = 1;  ///< of one message
  memory::DigestKind digest = memory::DigestKind::flat;  ///< what it takes
};

/// A request whose answer has not come in full.
class OpenRequest {
 public:
  virtual ~OpenRequest() = default;
  [[nodiscard]] virtual std::uint32_t peer() const = 0;
  /// A payload for this request; false when it waits for none.
  virtual bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming) = 0;
  /// Its peer has been dropped: what has not begun to arrive will not.
  virtual void drop() = 0;
};

/// What the ways of one restore share.
struct Shared {
  memory::CopyQueue& copies;
  Requests& requests;
  Events& events;
  Pacer pacer;  ///< remote bytes only
  Tally tally;
  Depths depths{};               ///< of requests to one peer
  ByteCount gathered_bytes = 0;  ///< of a request whose answer is gathered, at most
  bool digests = false;          ///< every part is digested at the destination, and compared with its source

  struct Peer {
    PeerLimits limits;
    bool dropped = false;
    std::vector<TransferPart> unfinished{};  ///< given back by Engine::drop()
  };
  std::vector<Peer> peers{};
  std::vector<std::shared_ptr<const std::vector<Transfer>>> transfers{};  // owners: see RestoreRun
  std::map<std::uint64_t, std::shared_ptr<OpenRequest>> open{};           // by number; owners: this and completions
  double digest_seconds = 0;                                              ///< that workers spent on digests
  bool stopped = false;

  /// Gives the request its number. Before it is asked for.
  std::uint64_t add(std::shared_ptr<OpenRequest> request) {
    const std::uint64_t number = peers.at(request->peer()).limits.first_request++;
    open.emplace(number, std::move(request));
    return number;
  }
  /// All of it has come.
  void over(std::uint32_t peer, std::uint64_t number) {
    if (open.erase(number) > 0) requests.forget(peer, number);
  }

  [[nodiscard]] bool dropped(std::uint32_t peer) const { return peers.at(peer).dropped; }
  /// Of digests that are compared with this peer's.
  [[nodiscard]] memory::DigestKind digest_kind(std::uint32_t peer) const { return peers.at(peer).limits.digest; }
  /// Parts of a dropped peer, once nothing writes there any more.
  void give_back(std::uint32_t peer, std::span<const TransferPart> parts) {
    auto& unfinished = peers.at(peer).unfinished;
    for (const TransferPart& part : parts) tally.dropped(*part.transfer, part.bytes());
    unfinished.insert(unfinished.end(), parts.begin(), parts.end());
  }

  /// Runs what may throw inside a completion, where nobody would catch it. False when it threw: the restore has failed.
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

  /// A large restore would only push everything else out of the caches; a small one is likely to be used at once.
  [[nodiscard]] memory::Stores stores() const {
    constexpr ByteCount min_streamed_restore = 16u << 20;
    return tally.expected_bytes() >= min_streamed_restore ? memory::Stores::streaming : memory::Stores::cached;
  }
};

/// One way of moving bytes: takes transfers, posts them part by part, never blocks.
class WayEngine {
 public:
  virtual ~WayEngine() = default;
  virtual void add(const Transfer& transfer) = 0;
  /// Posts one part or a few; false when nothing can be posted now (nothing left, no slot, rate).
  virtual bool post(Pacer::Clock::time_point now) = 0;
  /// True when nothing of this way will touch the destination any more unless something further is posted.
  [[nodiscard]] virtual bool idle() const = 0;
  /// Takes out what waits for this peer.
  virtual std::vector<TransferPart> drop(std::uint32_t peer) = 0;
  /// Whether the fabric may be writing into the destination what comes from this peer.
  [[nodiscard]] virtual bool writes_from(std::uint32_t) const { return false; }
};

/// local or mapped: source bytes can be loaded in place.
std::unique_ptr<WayEngine> make_in_place(std::shared_ptr<Shared> shared, Way way);
class StagingPool;
/// read and over_read: one-sided reads into place, or into staging where they cross gaps.
std::unique_ptr<WayEngine> make_reads(std::shared_ptr<Shared> shared, StagingPool& pool);

}  // namespace shardwire::move
