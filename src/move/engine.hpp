// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "move/messages.hpp"
#include "move/method.hpp"
#include "move/staging.hpp"

namespace shardwire::move {

class Engine;

/// Tells which engine a payload is for: its request has a number of that engine.
/// Threads: the session's thread only.
class PayloadTable {
 public:
  /// Numbers from `first_request` up to the next that was added are of `engine`. Ownership: borrows it until remove().
  void add(std::uint64_t first_request, Engine& engine) { engines_[first_request] = &engine; }
  void remove(const Engine& engine) {
    std::erase_if(engines_, [&](const auto& range) { return range.second == &engine; });
  }
  /// Discards a payload that no engine has asked for.
  void arrived(transport::Incoming& incoming) const;

 private:
  std::map<std::uint64_t, Engine*> engines_;  // by the first number of a range
};

struct EngineOptions {
  ByteCount ingress_bytes_per_second = 0;
  bool digests = false;
  const CostModel& costs;
  PayloadTable& payloads;
  CollectiveRounds* rounds = nullptr;       ///< of the method collective; null: none
  Tally::Now now = &Tally::WallClock::now;  ///< for the tally
};

/// Drives the methods of one restore.
/// Threads: the session's thread only; copies run where their queue runs them.
class Engine {
 public:
  /// `staging`: slots of slot_bytes_for(). Ownership: the other arguments are borrowed.
  Engine(memory::CopyQueue& copies, std::shared_ptr<StagingPool> staging, const EngineOptions& options,
         Requests& requests, Events& events);
  /// Requires: idle(), or the copy queue has ended.
  ~Engine();

  /// Requires: called for every peer before its transfers are added.
  void limit(std::uint32_t peer, const PeerLimits& limits);
  /// Adds transfers, to be moved now or later. Parts returned by drop() are expected once, however often they are
  /// added.
  /// Requires: no peer of these has been dropped.
  void add(std::shared_ptr<const std::vector<Transfer>> transfers);
  /// Accepts nothing more from this peer, whatever it still sends. Returns the parts of its transfers that have not
  /// arrived and that no operation writes any more; another peer must supply them. Operations in flight end first: call
  /// again after Events::changed() while tally().owed_bytes() is not 0. The restore is complete only after all parts
  /// are in place.
  /// `mapped`: whether transfers by Method::mapped stay.
  enum class Mapped : std::uint8_t { dropped, kept };
  std::vector<TransferPart> drop(std::uint32_t peer, Mapped mapped = Mapped::dropped);
  /// The source refuses this request. Returns its parts, none of which has begun to arrive; they count like those that
  /// drop() returns. None if there is no such request.
  std::vector<TransferPart> refuse(std::uint32_t peer, std::uint64_t number);
  /// Parts of this peer that wait and would come over a connection; they count like those that drop() returns. What is under
  /// way still arrives.
  std::vector<TransferPart> take_waiting(std::uint32_t peer);
  /// Parts that have arrived and were not those of their source, see Events::differs(); they count likewise.
  std::vector<TransferPart> take_differing(std::uint32_t peer) {
    return std::exchange(shared_->peers.at(peer).unfinished, {});
  }
  /// Posts everything that may be posted at this time. Returns when to call again if only the rate limit prevents more.
  std::optional<RateLimiter::WallClock::time_point> pump(RateLimiter::WallClock::time_point now);
  /// Called by the table. False if it answers none of our requests; after stop() always false.
  bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming);

  /// Every message that has answered a request was a copy: see transport::Incoming::is_copied().
  [[nodiscard]] bool messages_are_copied() const { return messages_are_copied_; }
  [[nodiscard]] bool complete() const { return shared_->tally.done_bytes() == shared_->tally.expected_bytes(); }
  /// As complete(), apart from parts of dropped peers that no other transfer has taken over.
  [[nodiscard]] bool settled() const {
    return shared_->tally.done_bytes() + shared_->tally.dropped_bytes() == shared_->tally.expected_bytes();
  }
  [[nodiscard]] bool dropped(std::uint32_t peer) const { return shared_->dropped(peer); }
  [[nodiscard]] const Tally& tally() const { return shared_->tally; }
  [[nodiscard]] Ledger& ledger() { return shared_->ledger; }
  [[nodiscard]] const Ledger& ledger() const { return shared_->ledger; }
  [[nodiscard]] double digest_seconds() const { return shared_->digest_seconds; }
  [[nodiscard]] ByteCount staging_peak_bytes() const { return staging_->peak_bytes(); }
  /// Posts nothing more; operations in flight end or are ignored. Drops every peer: once idle, drop() returns the parts
  /// that have not arrived.
  void stop();
  /// Nothing is being written into the destination, and nothing can begin to be.
  [[nodiscard]] bool idle() const;
  /// Copies of this process and rounds have ended, whatever the fabrics do.
  [[nodiscard]] bool copies_idle() const {
    return local_->idle() && mapped_->idle() && packed_->idle() && collective_->idle();
  }
  /// See MethodEngine.
  [[nodiscard]] bool writes_from(std::uint32_t peer) const {
    return zcopy_->writes_from(peer) || reads_->writes_from(peer);
  }
  /// Bytes of this peer were asked for over a connection, and have not arrived.
  [[nodiscard]] bool asks(std::uint32_t peer) const;

 private:
  [[nodiscard]] MethodEngine& engine_of(const Transfer& transfer) const;
  [[nodiscard]] std::array<MethodEngine*, 6> all() const;

  PayloadTable& payloads_;
  std::shared_ptr<StagingPool> staging_;  // owners: this engine and the owner that keeps it for the next
  std::shared_ptr<Shared> shared_;        // owners: this engine, its methods and completions in flight
  std::unique_ptr<MethodEngine> local_;
  std::unique_ptr<MethodEngine> mapped_;
  std::unique_ptr<MethodEngine> reads_;
  std::unique_ptr<MessageMethod> packed_;
  std::unique_ptr<MessageMethod> zcopy_;
  std::unique_ptr<MethodEngine> collective_;
  bool messages_are_copied_ = true;
};

}  // namespace shardwire::move
