// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>

#include "move/messages.hpp"
#include "move/staging.hpp"
#include "move/way.hpp"

namespace shardwire::move {

struct EngineOptions {
  ByteCount ingress_bytes_per_second = 0;
  bool digests = false;
  const CostModel& costs;
};

/// Drives the ways of one restore.
/// Threads: the session's thread only; copies where their queue makes them.
class Engine {
 public:
  /// `staging`: slots of slot_bytes_for(). Ownership: the others are borrowed.
  Engine(memory::CopyQueue& copies, std::shared_ptr<StagingPool> staging, const EngineOptions& options,
         Requests& requests, Events& events);
  /// Requires: idle(), or the queue of copies has ended.
  ~Engine();

  /// Requires: called for every peer before its transfers are added.
  void limit(std::uint32_t peer, const PeerLimits& limits);
  /// More to do, now or later. What drop() has given back is expected once, however often it is added. Requires: no peer of
  /// these has been dropped.
  void add(std::shared_ptr<const std::vector<Transfer>> transfers);
  /// Rounds of a collective are under way, or over: what goes by them is none of the engine's work, but of its books.
  void rounds_began() { shared_->tally.began(Way::grouped); }
  void rounds_ended() { shared_->tally.ended(Way::grouped); }
  /// All of these are in place. Requires: their way is grouped.
  void brought(std::span<const Transfer* const> transfers, double digest_seconds);
  /// Takes nothing more from this peer, whatever it still sends. Returns parts of its transfers that have not come, for
  /// somebody else to bring, and that nobody writes any more. What is in flight ends first, as it can: call again after
  /// Events::changed(), as long as tally().owed_bytes() says that there is something. The restore is not complete before all of it is
  /// in place.
  std::vector<TransferPart> drop(std::uint32_t peer);
  /// Posts all that may be posted now. Returns when to call again if only the rate stands in the way.
  std::optional<Pacer::Clock::time_point> pump();
  /// False when it is for none of our requests, as all are after stop().
  bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming);

  [[nodiscard]] bool complete() const { return shared_->tally.done_bytes() == shared_->tally.expected_bytes(); }
  [[nodiscard]] const Tally& tally() const { return shared_->tally; }
  [[nodiscard]] double digest_seconds() const { return shared_->digest_seconds; }
  [[nodiscard]] ByteCount staging_peak_bytes() const { return staging_->peak_bytes(); }
  /// Posts nothing more; what is in flight ends or is for nobody.
  void stop();
  /// Nothing is being written into the destination, and nothing can begin to be.
  [[nodiscard]] bool idle() const;
  /// Copies of this process are over, whatever the fabric does.
  [[nodiscard]] bool copies_idle() const { return local_->idle() && mapped_->idle() && packed_->idle(); }
  /// See WayEngine.
  [[nodiscard]] bool writes_from(std::uint32_t peer) const {
    return straight_->writes_from(peer) || gathered_->writes_from(peer) || reads_->writes_from(peer);
  }

 private:
  [[nodiscard]] WayEngine& engine_of(const Transfer& transfer) const;
  [[nodiscard]] std::array<WayEngine*, 6> all() const;

  std::shared_ptr<StagingPool> staging_;  // owners: this engine and who keeps it for the next
  std::shared_ptr<Shared> shared_;        // owners: this engine, its ways and completions in flight
  std::unique_ptr<WayEngine> local_;
  std::unique_ptr<WayEngine> mapped_;
  std::unique_ptr<WayEngine> reads_;
  std::unique_ptr<MessageWay> packed_;
  std::unique_ptr<MessageWay> straight_;
  std::unique_ptr<MessageWay> gathered_;  // straight, where messages take lists
};

}  // namespace shardwire::move
