// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/replan.hpp"
#include "restore/cached_restore.hpp"
#include "restore/destination.hpp"
#include "restore/movement.hpp"
#include "restore/replica_checks.hpp"
#include "restore/rounds_share.hpp"
#include "restore/source.hpp"
#include "restore/source_rules.hpp"
#include "restore/target.hpp"

namespace shardwire::restore {

/// Carries out one plan, from its sources to verified bytes:
///
///   sources (bind) ─► make_transfers, choose_methods ─► Movement (move, digests) ─► ReplicaChecks ─► sources (confirm)
///
/// Threads: loop thread only.
class Run final : private Source::Listener {
 public:
  /// None may destroy the run.
  struct Reports {
    /// Every byte but those of undelivered() is in place, unchanged and confirmed. With bind_only: every source is bound
    /// and was released.
    std::function<void()> verified;
    std::function<void(Stage stage)> stage;  ///< the restore enters it
    Callbacks::Failed failed;
    /// The restore cannot continue without this source, which is lost or has withdrawn its publication.
    SourceEnded source_ended;
    std::function<void(const Source& source, PathLoss loss, const std::string& why)> path_lost;
    std::function<void()> quieter;  ///< after stop(): an activity that may have written the destination has ended
  };
  /// Results of an earlier run that this one may use.
  struct Earlier {
    std::unique_ptr<CachedRestore> restore{};      ///< its plan is that of this run; null: none
    std::shared_ptr<move::StagingPool> staging{};  ///< null: none. Owners: see Movement
    std::vector<Rank> lost{};                      ///< holders
  };

  /// `failures`: of the restore's earlier runs, too. `rounds`: null if there are none. Ownership: borrows all but
  /// `reports`, `planning` and `earlier`.
  Run(const Context& context, Reports reports, Target& target, DestinationEvents& events, PathFailures& failures,
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
  /// Holders of ranks of the plan that were published since.
  void find_copies();
  /// Boxes that another run has to move: other holders deliver them in place of lost sources, and sources whose paths have
  /// failed over other connections.
  [[nodiscard]] std::vector<PieceBox> undelivered() const;
  /// Holders that were lost for good, and the error of the first.
  [[nodiscard]] const std::vector<Rank>& lost() const { return lost_; }
  [[nodiscard]] const std::exception_ptr& loss() const { return loss_; }
  /// Whether others than the holders in the plan may hold what is left after the loss.
  [[nodiscard]] bool may_be_held_later() const;
  /// Sources that were given up. The second also counts what their boxes cost, which other sources deliver now.
  [[nodiscard]] std::vector<LostSource> losses() const;
  [[nodiscard]] std::vector<LostSource> replaced() const;
  /// Whom the next plan passes over, for good or where others are left.
  [[nodiscard]] Unavailable unavailable(CorruptHolders corrupt) const {
    return {.lost = lost_, .silent = silent_, .slow = slow_, .corrupt = std::move(corrupt)};
  }
  /// All that is not in place for certain. Requires: stopped and quiet, but not released.
  [[nodiscard]] std::vector<PieceBox> unproven();
  /// For the plan of what was not delivered. Requires: released, for changes.
  [[nodiscard]] std::shared_ptr<Planning> share_planning() const { return planning_; }
  /// Boxes that were not what their sources have published.
  [[nodiscard]] std::span<const FoundCorrupt> corrupt() const {
    return movement_ ? std::span<const FoundCorrupt>(movement_->corrupt()) : std::span<const FoundCorrupt>();
  }
  [[nodiscard]] const Sources& sources() const { return sources_; }
  /// Processor time of digests on this side.
  [[nodiscard]] double digest_seconds() const;
  [[nodiscard]] const ChosenTransfers& chosen() const { return chosen_; }
  /// Null while nothing moves.
  [[nodiscard]] Movement* movement() const { return movement_.get(); }
  /// Error for a deadline that passes now.
  [[nodiscard]] Error late() const;
  /// What it waits for, for the log: its sources, or events of the destination. Empty: for nothing.
  [[nodiscard]] std::string awaited() const;
  /// Changes with each answer of a source, or of a holder that it compares with.
  [[nodiscard]] std::uint64_t answers() const;
  [[nodiscard]] std::shared_ptr<move::StagingPool> take_staging();
  /// Moves the results into `cached`. False: the next restore cannot use them. Requires: it has succeeded, and was
  /// released.
  bool keep_in(CachedRestore& cached);

 private:
  /// The state that all sources have to reach before the next step.
  enum class Awaited : std::uint8_t { nothing, bound, confirmed };

  void on_bound(Source&) override { go_on(); }
  void on_confirmed(Source&) override { go_on(); }
  void on_lost(Source& source, const std::exception_ptr& error) override;
  void await(Awaited what);
  void go_on();
  void on_all_bound();
  void on_moved();
  void on_path_lost(Source& source, PathLoss loss, const std::string& why);
  [[nodiscard]] Sample sample_of(const Source& source) const;
  [[nodiscard]] std::vector<Sample> samples() const;
  void look(Clock::Time now, bool overslept);
  void on_silent(const Silence::Found& found);
  void on_standstill(Source& source, Duration lasted);
  void on_slow(std::span<const std::size_t> slow, std::span<const Sample> samples);
  [[nodiscard]] bool answers(const Source& source) const;
  /// All its connections have failed before it was bound, though it is alive, and not too often yet.
  bool may_be_reached(const Source& source);
  bool can_continue();
  /// Boxes that the plan reads from this holder, or from all if empty.
  [[nodiscard]] std::vector<PieceBox> scheduled_of(std::optional<Rank> holder) const;
  void choose(BoundTransfers bound);
  void begin();
  void move();
  void confirm();
  [[nodiscard]] PathInputs paths();
  [[nodiscard]] std::vector<SourceProgress> progress() const;
  /// All is bound, and nothing moves before the destination's own events have happened.
  [[nodiscard]] bool awaits_events() const;

  const Context& context_;
  Reports reports_;
  Target& target_;
  DestinationEvents& events_;
  PathFailures& failures_;
  RoundsShare* rounds_;
  Callbacks callbacks_;
  std::shared_ptr<Planning> planning_;  // owners: this, and what another run takes over once this one is released
  Earlier earlier_;
  Sources sources_;
  Awaited awaited_ = Awaited::nothing;
  ChosenTransfers chosen_;
  std::unique_ptr<ReplicaChecks> replicas_;  // null: nothing to compare
  std::unique_ptr<Movement> movement_;       // ends before the objects that it uses
  RegularLook look_;
  Silence silence_;
  Standstill standstill_;     // while it moves
  SlowSources slow_sources_;  // likewise
  std::vector<Rank> lost_;
  std::vector<Rank> silent_;     // set aside or not; may be heard again
  std::vector<Rank> slow_;       // or at a standstill, or connected again
  std::vector<Rank> set_aside_;  // of the silent ones, and those that are connected again
  std::exception_ptr loss_;
  struct Loss {
    std::size_t source;  // index
    LostSource report;
  };
  std::vector<Loss> losses_;  // for the report: of lost_ and set_aside_
  bool stopped_ = false;
};

}  // namespace shardwire::restore
