// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "restore/destination.hpp"
#include "restore/discovery.hpp"
#include "restore/holder_search.hpp"
#include "restore/owner.hpp"
#include "restore/report.hpp"
#include "restore/rounds_share.hpp"
#include "restore/run.hpp"
#include "restore/target.hpp"

namespace shardwire::restore {

/// The exchange around a restore. No member publishes a second time in it.
struct InExchange {
  std::shared_ptr<RoundsStep> rounds{};  ///< null: none. Owners: see ExchangeSteps
  std::size_t losses = 0;                ///< Directory::losses() when all members had met
  std::optional<Method> method{};        ///< in place of RestoreOptions::method
};

/// One call of Session::restore().
struct Request {
  Catalog wanted;
  TensorPlaces places;  ///< of wanted
  RestoreOptions options;
  std::optional<Method> method{};  ///< the only one for bytes of other processes, by whatever was asked; empty: any
  std::optional<InExchange> exchange{};           ///< empty: there is none around it
  std::unique_ptr<Unfinished> unfinished{};       ///< to be resumed; null: a new restore
  std::optional<wire::PublicationRecord> only{};  ///< the only publication to read from; empty: all
  /// Filled with the digests that `only` has published, of all tensors that are read from it. Null: not wanted. Owners: the
  /// restore, and whoever asks for it.
  std::shared_ptr<BlockDigests> digests{};
};

/// Leads one restore from a catalog to bytes in place:
///
///   Discovery (plan) ─► Run (bind, move, verify) ─► Commit
///
/// A resumed restore that has a plan begins with a HolderSearch in place of the Discovery. One whose holders are lost, while
/// others may come, has it between two runs. Connects and owns these parts. Its owner decides the reaction to failures.
/// Threads: loop thread only.
class Restore final {
 public:
  /// `began`: time of the caller's call. Ownership: borrows the context and the owner.
  Restore(const Context& context, Owner& owner, Request request, Clock::Time began);

  void start();
  /// Goes on after Owner::on_values() has said that it has to stand. Does nothing else.
  void proceed();
  void directory_changed() { search_ ? search_->directory_changed() : discovery_.directory_changed(); }
  /// Notes for the report that this source has withdrawn its publication. A restart follows.
  void note_withdrawn(Rank source, const Error& withdrawn);
  /// Restarts with another plan, once quiet(). Moves every byte again: received bytes belong to an outdated generation.
  /// `gone`: a publication found withdrawn, which rosters may still name. `withdrawn`: see Discovery::restart().
  void restart(const std::optional<wire::PublicationRecord>& gone, const std::optional<Error>& withdrawn);
  /// Begins nothing more.
  void stop();
  /// No job of it accesses the caller's memory. `fabrics_dead`: see Movement::quiet().
  [[nodiscard]] bool quiet(bool fabrics_dead) const;
  /// After stop(): what can be resumed. Requires: quiet, and not released.
  [[nodiscard]] std::unique_ptr<Unfinished> leave();
  /// After stop(): returns leases and events, and ignores further answers.
  void release();
  /// Caches the results for the next restore of the same catalog. Requires: it has succeeded, and was released.
  void keep();

  /// What the plan takes; empty: there is no plan.
  struct Taken {
    std::int64_t step = 0;
    std::uint64_t origin = 0;
  };
  [[nodiscard]] std::optional<Taken> taken() const {
    if (!run_) return std::nullopt;
    const wire::PublicationRecord& any = run_->planning().records.front();
    return Taken{any.step, any.origin};
  }
  /// Bytes in place and bytes wanted, in all.
  [[nodiscard]] std::pair<ByteCount, ByteCount> progress() const;
  /// Null until there is a plan.
  [[nodiscard]] const Run* run() const { return run_.get(); }
  /// Null while nothing moves.
  [[nodiscard]] Movement* movement() const { return run_ ? run_->movement() : nullptr; }
  /// Error for a deadline that passes now.
  [[nodiscard]] Error late(Stage stage) const;
  /// What it waits for now, for the log. Empty: for nothing that the log can name.
  [[nodiscard]] std::string awaited(Stage stage) const;
  /// Changes while it gets on: with the bytes in place, or with the answers where no bytes move.
  [[nodiscard]] std::uint64_t advance(Stage stage) const;
  /// Name and rank of the restore, for the log.
  [[nodiscard]] std::string title() const;
  /// For the log, when it has ended. `error`: null if it succeeded.
  [[nodiscard]] std::string outcome(const RestoreReport& report, const std::exception_ptr& error) const;
  [[nodiscard]] RestoreReport report(const StageSeconds& seconds, bool failed) const;
  /// Adds what the present run has moved, unless there is no trace.
  void trace_moved() const;
  /// Properties of its span. `error`: as for outcome().
  [[nodiscard]] std::vector<telemetry::Attribute> attributes(const RestoreReport& report,
                                                             const std::exception_ptr& error) const;
  [[nodiscard]] std::map<TensorKey, SharedValue> take_values() { return std::move(values_); }

 private:
  void on_planned(std::shared_ptr<Planning> planning);
  void on_verified();
  [[nodiscard]] std::optional<Error> lost_before_plan(const ResolvedValues& resolved) const;
  void start_run(std::shared_ptr<Planning> planning, Run::Earlier earlier);
  void replace_lost();
  void search(std::unique_ptr<Unfinished> unfinished, std::exception_ptr loss);
  void resume();
  void pass_over_silent(Planning& planning);
  [[nodiscard]] std::vector<Rank> pass_over(const Plan& plan, std::span<const PieceBox> missing,
                                            const Unavailable& of_run);
  void plan_again(Planning& planning, std::span<const PieceBox> boxes, const Unavailable& unavailable);
  void replan_and_run(std::shared_ptr<Planning> planning, std::span<const PieceBox> missing,
                      const Unavailable& unavailable);
  [[nodiscard]] RestoreReport report_without(std::span<const PieceBox> missing) const;
  void replace_lost_soon();
  [[nodiscard]] ReportInput report_input(const ChosenTransfers& chosen, const StageSeconds& seconds, bool failed) const;
  [[nodiscard]] RestoreReport report_of_run(const StageSeconds& seconds, bool failed) const;

  const Context& context_;
  Owner& owner_;
  Callbacks callbacks_;
  std::unique_ptr<CachedRestore> earlier_;  // null: none, or unusable
  Target target_;
  std::unique_ptr<RoundsShare> rounds_;  // null where there are none
  Discovery discovery_;
  std::shared_ptr<Planning> planned_;     // of a restore that stands at its values; else null
  std::unique_ptr<HolderSearch> search_;  // until the run of what is missing begins; null: none
  DestinationEvents events_;
  Commit commit_;
  PathFailures failures_;
  Corruption corruption_;
  Timer reconnect_;
  std::shared_ptr<move::StagingPool> staging_;  // of an abandoned plan
  std::unique_ptr<Run> run_;
  std::map<TensorKey, SharedValue> values_;
  std::vector<TensorId> zeroed_;
  std::array<ByteCount, method_count> abandoned_bytes_{};  // moved for abandoned plans
  RestoreReport before_;                                   // of the runs before, of which this one moves the rest
  std::optional<LostSource> gone_;                         // withdrawn; the restart is to count its cost
  bool replaced_ = false;                                  // this run's plan is not that of the layouts alone
  std::vector<Rank> passed_over_;                          // holders that did not answer
  bool stopped_ = false;
};

}  // namespace shardwire::restore
