// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/operation.hpp"
#include "restore/attempt.hpp"
#include "restore/clocks.hpp"
#include "restore/destination.hpp"
#include "restore/discovery.hpp"
#include "restore/holder_search.hpp"
#include "restore/report.hpp"
#include "restore/rounds_step.hpp"
#include "restore/state.hpp"
#include "restore/target.hpp"

namespace shardwire::restore {

/// The exchange around a restore. No member publishes a second time in it.
struct InExchange {
  std::shared_ptr<RoundsStep> rounds{};  ///< null: none. Owners: the exchange and its restore
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

/// One restore, from a catalog to bytes in place, with its deadline, progress and end:
///
///   Discovery (plan) ─► Attempt (bind, move, verify) ─► Commit
///
/// A resumed restore that has a plan begins with a HolderSearch in place of the Discovery. One whose holders are lost, while
/// others may come, has it between two attempts. Owns these parts and decides what their failures mean: if only a publication or
/// a connection is gone, another plan; otherwise the end, once nothing writes to the destination any more.
/// Threads: loop thread only.
class RestoreOperation final : public Operation {
 public:
  /// `began`: time of the caller's call. `join_seconds`: see StageClock. Ownership: borrows the context.
  RestoreOperation(const Context& context, std::shared_ptr<detail::RestoreState> state, Request request,
                   Clock::Time began, double join_seconds);

  void fail(const std::exception_ptr& error);
  /// See Restore::proceed() of the public API.
  void proceed();

  void start() override;
  void directory_changed() override { search_ ? search_->directory_changed() : discovery_.directory_changed(); }
  bool caller_failed(const std::exception_ptr& error) override;
  void fabric_broke(const std::exception_ptr& error) override;
  void stop_writing() override;
  [[nodiscard]] bool written() const override;
  void abandon() override;

 private:
  /// The step after the last write has ended.
  enum class Ending : std::uint8_t { none, restart, finish };

  void enter(Stage stage);
  /// The restore has ended, with or without an error.
  [[nodiscard]] bool is_done() const { return stages_.stage() == Stage::done || stages_.stage() == Stage::failed; }
  /// Null while nothing moves.
  [[nodiscard]] const move::Tally* tally() const { return attempt_ ? attempt_->tally() : nullptr; }

  void on_planned(std::shared_ptr<Planning> planning);
  [[nodiscard]] std::optional<Error> lost_before_plan(const ResolvedValues& resolved) const;
  bool offer_values();
  void begin_attempt();
  void pass_over_silent(Planning& planning);
  void start_attempt(std::shared_ptr<Planning> planning, Attempt::Earlier earlier);
  void on_verified();

  void replace_lost_soon();
  void replace_lost();
  void search(std::unique_ptr<Unfinished> unfinished, std::exception_ptr loss);
  [[nodiscard]] std::vector<Rank> pass_over(const Plan& plan, std::span<const PieceBox> missing,
                                            const Unavailable& of_attempt);
  void plan_again(Planning& planning, std::span<const PieceBox> boxes, const Unavailable& unavailable);
  void move_again(std::shared_ptr<Planning> planning, std::span<const PieceBox> missing,
                  const Unavailable& unavailable);
  [[nodiscard]] std::unique_ptr<Unfinished> leave();
  void resume();

  void arm_progress();
  void look_at_progress();
  void look_at_wait();
  [[nodiscard]] Progress progress() const;
  void report_progress();

  void on_source_ended(const Source& source, const std::exception_ptr& error);
  void on_path_lost(const Source& source, PathLoss loss, const std::string& why);
  /// False: this restore may not restart now.
  bool restart(std::optional<wire::PublicationRecord> gone, std::optional<Error> withdrawn);
  void restart_now();
  void end(const std::exception_ptr& error);
  void stop();
  void stop_parts();
  [[nodiscard]] bool is_quiet() const;
  void on_quieter();
  void finish();
  void release();
  void keep();

  /// Boxes not in place, once bytes move.
  [[nodiscard]] std::vector<Gap> missing() const;
  /// Error for a deadline that passes now.
  [[nodiscard]] Error late() const;
  /// What it waits for now, for the log. Empty: for nothing that the log can name.
  [[nodiscard]] std::string awaited() const;
  /// Changes while it gets on: with the bytes in place, or with the answers where no bytes move.
  [[nodiscard]] std::uint64_t advance() const;
  /// Name and rank of the restore, for the log.
  [[nodiscard]] std::string title() const;
  [[nodiscard]] std::string outcome(const RestoreReport& report) const;
  void trace_moved(telemetry::Trace& trace, const std::vector<MovedRow>& rows) const;
  void trace_stages(telemetry::Trace& trace, const RestoreReport& report) const;
  /// Logs and traces it, too.
  [[nodiscard]] RestoreReport last_report() const;
  [[nodiscard]] ReportInput report_input(const ChosenTransfers& chosen, const StageSeconds& seconds, bool failed) const;
  /// `trace`: receives a span of each row; null: nobody wants them.
  [[nodiscard]] RestoreReport report_of_attempt(const StageSeconds& seconds, bool failed,
                                                telemetry::Trace* trace = nullptr) const;
  [[nodiscard]] RestoreReport report_without(std::span<const PieceBox> missing,
                                             telemetry::Trace* trace = nullptr) const;

  const Context& context_;
  std::shared_ptr<detail::RestoreState> state_;  // owners: this and the caller's handle
  bool replaces_withdrawn_;  // restarts when a source has withdrawn: it may have published another generation
  bool replaces_paths_;      // restarts when a path is lost
  bool resumable_;           // once it has ended
  StageClock stages_;
  Timer deadline_;
  Timer progress_;
  std::optional<Progress> reported_;  // to the caller; the bytes and the stage
  Clock::Time reported_at_{};
  WaitClock wait_;
  Timer grace_;  // for bytes in flight when the restore is stopped
  Callbacks callbacks_;
  std::unique_ptr<ParkedAttempt> earlier_;  // null: none, or unusable
  Target target_;
  std::shared_ptr<RoundsStep> rounds_;  // null where there are none; owners: this and the exchange
  Discovery discovery_;
  std::shared_ptr<Planning> planned_;     // of a restore that stands at its values; else null
  std::unique_ptr<HolderSearch> search_;  // until the attempt at what is missing begins; null: none
  DestinationEvents events_;
  Commit commit_;
  PathFailures failures_;
  Corruption corruption_;
  Timer reconnect_;
  std::shared_ptr<move::StagingPool> staging_;  // of an abandoned plan
  std::unique_ptr<Attempt> attempt_;
  std::map<TensorKey, SharedValue> values_;
  std::vector<TensorId> zeroed_;
  std::array<ByteCount, method_count> abandoned_bytes_{};  // moved for abandoned plans
  RestoreReport before_;                                   // of the attempts before, of which this one moves the rest
  std::optional<LostSource> withdrawn_source_;             // the restart is to count its cost
  bool replaced_ = false;                                  // this attempt's plan is not that of the layouts alone
  std::vector<Rank> passed_over_;                          // holders that did not answer
  std::exception_ptr error_;
  Ending ending_ = Ending::none;
  std::optional<wire::PublicationRecord> gone_;  // for the restart, as the next
  std::optional<Error> withdrawn_;
  int path_losses_ = 0;
  bool fabrics_dead_ = false;
};

}  // namespace shardwire::restore
