// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "move/engine.hpp"
#include "restore/callbacks.hpp"
#include "restore/digest_checks.hpp"
#include "restore/discovery.hpp"
#include "restore/owner.hpp"
#include "restore/services.hpp"
#include "restore/source.hpp"
#include "restore/source_watch.hpp"

namespace shardwire::restore {

/// Moves the bytes of one plan: the engine with its staging, its requests to sources, and the watch over them.
/// Threads: loop thread only.
class Movement final : private move::Requests, private move::Events, private SourceWatch::Listener {
 public:
  class Listener {
   public:
    /// Every byte is in place.
    virtual void on_moved() = 0;

   protected:
    ~Listener() = default;
  };
  using Sources = std::span<const std::unique_ptr<Source>>;

  /// `staging`: of an earlier restore; may be null. `rounds`: of the method collective; null if there are none. Failures go to the owner.
  ///            Ownership: borrows all but the staging.
  Movement(Services& services, Listener& listener, Owner& owner, const RestoreOptions& options,
           const Planning& planning, const Wanted& wanted, Sources sources, move::CollectiveRounds* rounds,
           std::shared_ptr<move::StagingPool> staging);
  ~Movement();

  void start(std::shared_ptr<const std::vector<move::Transfer>> transfers);
  bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming) {
    return engine_->payload(header, incoming);
  }
  /// Posts all permitted transfers. Call it after every change.
  void advance();
  /// Call it often: checks that silent sources are alive.
  void look_after_sources();
  /// Compares the digests of received parts with the sources'. `done` runs if they are equal.
  void compare_digests(std::function<void()> done);

  /// Posts nothing more, and ends rounds. The owner is notified as transfers end.
  void stop();
  /// No job of this movement accesses the destination. `fabrics_dead`: the fabrics are no longer driven, so they write
  /// nothing.
  [[nodiscard]] bool quiet(bool fabrics_dead) const;
  /// Fabrics and rounds no longer write to the destination.
  [[nodiscard]] bool written() const { return engine_->idle(); }
  /// Ends writes that fabrics may still make. `keeps_links`: the connections are still needed.
  void abort_connections(bool keeps_links);

  [[nodiscard]] const move::Tally& tally() const { return engine_->tally(); }
  [[nodiscard]] double digest_seconds() const { return engine_->digest_seconds(); }
  [[nodiscard]] ByteCount staging_peak_bytes() const { return engine_->staging_peak_bytes(); }
  [[nodiscard]] std::shared_ptr<move::StagingPool> take_staging() { return std::move(staging_); }
  /// Progress of each source.
  [[nodiscard]] std::vector<SourceProgress> progress() const { return watch_->progress(transfers()); }
  /// Boxes not in place.
  [[nodiscard]] std::vector<Gap> missing() const;

 private:
  transport::Endpoint& endpoint(std::uint32_t peer) override;
  void ask(std::uint32_t peer, std::uint64_t request, std::vector<move::PackPart> parts, move::Answer answer) override;
  void forget(std::uint32_t peer, std::uint64_t request) override;
  void changed() override { advance(); }
  void failed(const std::exception_ptr& error) override;
  void peer_failed(std::uint32_t peer, const transport::Fault& fault) override;
  void digested(const move::TransferPart& part, const memory::Digest128& digest) override;
  void differs(const move::TransferPart& part) override;
  void on_channel_ended(Source& source) override;
  [[nodiscard]] std::span<const move::Transfer> transfers() const;

  Services& services_;
  Listener& listener_;
  Owner& owner_;
  const RestoreOptions& options_;
  const Planning& planning_;
  const Wanted& wanted_;
  Sources sources_;
  Callbacks callbacks_;
  Timer retry_;                                                   // when only the rate limit delays a transfer
  std::shared_ptr<move::StagingPool> staging_;                    // owners: this, the engine, and the cache then
  std::shared_ptr<const std::vector<move::Transfer>> transfers_;  // owners: the restore, the engine, and the cache then
  DigestChecks checks_;
  std::unique_ptr<move::Engine> engine_;
  std::unique_ptr<SourceWatch> watch_;
  bool stopped_ = false;
  bool moved_ = false;
};

}  // namespace shardwire::restore
