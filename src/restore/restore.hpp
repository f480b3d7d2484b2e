// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>

#include "restore/destination.hpp"
#include "restore/discovery.hpp"
#include "restore/owner.hpp"
#include "restore/rounds_share.hpp"
#include "restore/run.hpp"
#include "restore/target.hpp"

namespace shardwire::restore {

/// One call of Session::restore().
struct Request {
  Catalog wanted;
  TensorPlaces places;  ///< of wanted
  RestoreOptions options;
  std::shared_ptr<RoundsStep> rounds{};  ///< of the exchange around this restore; null: none
};

/// Leads one restore from a catalog to bytes in place:
///
///   Discovery (plan) ─► Run (bind, move, verify) ─► Commit
///
/// Connects and owns these parts. Its owner decides the reaction to failures.
/// Threads: loop thread only.
class Restore final : private Discovery::Listener, private Run::Listener {
 public:
  /// `began`: time of the caller's call. Ownership: borrows services and owner.
  Restore(Services& services, Owner& owner, Request request, Clock::Time began);

  void start();
  void directory_changed() { discovery_.directory_changed(); }
  /// Restarts with another plan, once quiet(). Moves every byte again: received bytes belong to an outdated generation.
  /// `gone`, `withdrawn`: see Discovery::restart().
  void restart(const std::optional<wire::PublicationRecord>& gone, const std::optional<Error>& withdrawn);
  /// Begins nothing more.
  void stop();
  /// No job of it accesses the caller's memory. `fabrics_dead`: see Movement::quiet().
  [[nodiscard]] bool quiet(bool fabrics_dead) const;
  /// After stop(): returns leases and events, and ignores further answers.
  void release();
  /// Caches the results for the next restore of the same catalog. Requires: it has succeeded, and was released.
  void keep();

  /// Null until there is a plan.
  [[nodiscard]] const Run* run() const { return run_.get(); }
  /// Null while nothing moves.
  [[nodiscard]] Movement* movement() const { return run_ ? run_->movement() : nullptr; }
  /// Error for a deadline that passes now.
  [[nodiscard]] Error late(Stage stage) const;
  [[nodiscard]] RestoreReport report(const StageSeconds& seconds, bool failed) const;
  [[nodiscard]] std::map<TensorKey, Value> take_values() { return std::move(values_); }

 private:
  void on_planned(std::shared_ptr<Planning> planning) override;
  void on_verified() override;

  Services& services_;
  Owner& owner_;
  Callbacks callbacks_;
  std::unique_ptr<CachedRestore> earlier_;  // null: none, or unusable
  Target target_;
  std::unique_ptr<RoundsShare> rounds_;  // null where there are none
  Discovery discovery_;
  DestinationEvents events_;
  Commit commit_;
  std::shared_ptr<move::StagingPool> staging_;  // of an abandoned plan
  std::unique_ptr<Run> run_;
  std::map<TensorKey, Value> values_;
  std::array<ByteCount, method_count> abandoned_bytes_{};  // moved for abandoned plans
  bool stopped_ = false;
};

}  // namespace shardwire::restore
