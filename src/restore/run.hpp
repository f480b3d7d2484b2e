// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "restore/cached_restore.hpp"
#include "restore/destination.hpp"
#include "restore/movement.hpp"
#include "restore/owner.hpp"
#include "restore/replica_checks.hpp"
#include "restore/rounds_share.hpp"
#include "restore/sources.hpp"
#include "restore/target.hpp"

namespace shardwire::restore {

/// Carries out one plan, from its sources to verified bytes:
///
///   Sources (bind) ─► make_transfers, choose_methods ─► Movement (move, digests) ─► ReplicaChecks ─► Sources (confirm)
///
/// Failures go to the owner.
/// Threads: loop thread only.
class Run final : private Sources::Listener, private Movement::Listener {
 public:
  class Listener {
   public:
    /// Every byte is in place, unchanged and confirmed. With bind_only: every source is bound and was released.
    virtual void on_verified() = 0;

   protected:
    ~Listener() = default;
  };
  /// Results of an earlier run that this one may use.
  struct Earlier {
    std::unique_ptr<CachedRestore> restore{};      ///< its plan is that of this run; null: none
    std::shared_ptr<move::StagingPool> staging{};  ///< null: none. Owners: see Movement
  };

  /// `rounds`: null if there are none. Ownership: borrows all but `planning` and `earlier`.
  Run(Services& services, Listener& listener, Owner& owner, Target& target, DestinationEvents& events,
      RoundsShare* rounds, std::shared_ptr<Planning> planning, Earlier earlier);

  void start();
  /// Begins nothing more.
  void stop();
  /// No job of it accesses the destination, apart from rounds. `fabrics_dead`: see Movement::quiet().
  [[nodiscard]] bool quiet(bool fabrics_dead) const {
    return (!movement_ || movement_->quiet(fabrics_dead)) && (!replicas_ || replicas_->quiet());
  }
  /// Returns leases, and ignores further answers. Requires: quiet.
  void release();

  [[nodiscard]] const Planning& planning() const { return *planning_; }
  [[nodiscard]] const Sources& sources() const { return sources_; }
  /// The publication of a rank that is read from, or compared.
  [[nodiscard]] std::optional<wire::PublicationRecord> record_of(Rank rank) const;
  /// Processor time of digests on this side.
  [[nodiscard]] double digest_seconds() const;
  [[nodiscard]] const ChosenTransfers& chosen() const { return chosen_; }
  /// Null while nothing moves.
  [[nodiscard]] Movement* movement() const { return movement_.get(); }
  /// Error for a deadline that passes now.
  [[nodiscard]] Error late() const;
  [[nodiscard]] std::shared_ptr<move::StagingPool> take_staging();
  /// Moves the results into `cached`. False: the next restore cannot use them. Requires: it has succeeded, and was
  /// released.
  bool keep_in(CachedRestore& cached);

 private:
  void on_all_bound() override;
  void on_all_confirmed() override { listener_.on_verified(); }
  void on_source_lost(const std::exception_ptr& error) override { owner_.on_failed(error); }
  void on_moved() override;
  void choose(BoundTransfers bound);
  void begin();
  void move();
  void confirm();
  [[nodiscard]] PathInputs paths();

  Services& services_;
  Listener& listener_;
  Owner& owner_;
  Target& target_;
  DestinationEvents& events_;
  RoundsShare* rounds_;
  Callbacks callbacks_;
  std::shared_ptr<Planning> planning_;  // no other owner
  Earlier earlier_;
  Sources sources_;
  ChosenTransfers chosen_;
  std::unique_ptr<ReplicaChecks> replicas_;  // null: nothing to compare
  std::unique_ptr<Movement> movement_;       // ends before the objects that it uses
  bool stopped_ = false;
};

}  // namespace shardwire::restore
