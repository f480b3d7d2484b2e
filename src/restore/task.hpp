// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "restore/context.hpp"
#include "restore/owner.hpp"
#include "restore/restore.hpp"
#include "restore/running_restore.hpp"
#include "restore/state.hpp"
#include "restore/wait_clock.hpp"
#include "runtime/clock.hpp"
#include "shardwire/report.hpp"
#include "telemetry/profiler_range.hpp"
#include "telemetry/trace.hpp"

namespace shardwire::restore {

/// Time per stage. Stages follow one another without overlap, and sum to the wall time.
class StageClock {
 public:
  /// `began`: time of the caller's call. `join_seconds`: duration of joining, if this is the session's first restore.
  /// `keeps_spans`: see spans().
  StageClock(const Clock& clock, Clock::Time began, double join_seconds, bool keeps_spans);

  /// Time spent on stopping belongs to the stopped stage.
  void enter(Stage stage);
  [[nodiscard]] Stage stage() const { return stage_; }
  [[nodiscard]] StageSeconds seconds() const;
  /// From the call to the last stage, and the stages in it. Those of one name sum to their seconds().
  [[nodiscard]] std::vector<telemetry::Span> spans(std::vector<telemetry::Attribute> attributes) const;

 private:
  static constexpr std::size_t max_spans = 1000;  // each plan has some

  const Clock& clock_;
  Clock::Time began_;
  Clock::Time stage_began_;
  Stage stage_ = Stage::plan;
  StageSeconds seconds_;
  double* account_ = &seconds_.plan;                     // account of the running stage
  const char* account_name_ = "shardwire.restore.plan";  // of its spans
  const bool keeps_spans_;
  std::vector<telemetry::Span> spans_;
  telemetry::ProfilerRange restore_range_{"shardwire.restore"};
  telemetry::ProfilerRange stage_range_{account_name_};
};

/// One restore as the session and the caller's handle see it: its deadline, progress and end. If only a publication or
/// a connection is gone, a failure leads to another plan; otherwise to the end, once nothing writes to the destination
/// any more.
/// Threads: loop thread only.
class RestoreTask final : public RunningRestore, private Owner {
 public:
  RestoreTask(const Context& context, std::shared_ptr<detail::RestoreState> state, Request request, Clock::Time began,
              double join_seconds);
  ~RestoreTask() override;

  void fail(const std::exception_ptr& error);
  /// See Restore::proceed() of the public API.
  void proceed();

  void start() override;
  void directory_changed() override { restore_.directory_changed(); }
  bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming) override;
  bool caller_failed(const std::exception_ptr& error) override;
  void fabric_broke(const std::exception_ptr& error) override;
  void stop_writing() override;
  [[nodiscard]] bool written() const override;
  void abandon() override;

 private:
  /// The step after the last write has ended.
  enum class Ending : std::uint8_t { none, restart, finish };

  void on_stage(Stage stage) override;
  void on_failed(const std::exception_ptr& error) override { fail(error); }
  bool on_values(const std::map<TensorKey, SharedValue>& values) override;
  void on_source_ended(const Source& source, const std::exception_ptr& error) override;
  void on_path_lost(Source& source, PathLoss loss, const std::string& why) override;
  void on_quieter() override;
  void on_done() override { finish(); }

  /// False: this restore may not restart now.
  bool restart(std::optional<wire::PublicationRecord> gone, std::optional<Error> withdrawn);
  void end(const std::exception_ptr& error);
  void stop();
  void finish();
  /// Boxes not in place, once bytes move.
  [[nodiscard]] std::vector<Gap> missing() const;
  void arm_progress();
  void look_at_progress();
  [[nodiscard]] Progress progress();
  void report_progress();
  /// Logs what it waits for, when that is due.
  void look_at_wait();
  [[nodiscard]] RestoreReport report() const;
  void trace(const RestoreReport& report) const;
  /// The restore has ended, with or without an error.
  [[nodiscard]] bool is_done() const { return stages_.stage() == Stage::done || stages_.stage() == Stage::failed; }

  const Context& context_;
  std::shared_ptr<detail::RestoreState> state_;  // owners: this and the caller's handle
  bool replaces_withdrawn_;  // restarts when a source has withdrawn: it may have published another generation
  bool replaces_paths_;      // restarts when a path is lost
  bool resumable_;           // once it has ended
  StageClock stages_;
  Clock::Time began_;
  Duration limit_;  // from then to the deadline
  Timer deadline_;
  Timer progress_;
  std::optional<Progress> reported_;  // to the caller; the bytes and the stage
  Clock::Time reported_at_{};
  WaitClock wait_;
  Timer grace_;  // for bytes in flight when the restore is stopped
  Restore restore_;
  std::exception_ptr error_;
  Ending ending_ = Ending::none;
  std::optional<wire::PublicationRecord> gone_;  // for the restart, as the next
  std::optional<Error> withdrawn_;
  int path_losses_ = 0;
  bool fabrics_dead_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this; deferred tasks hold weak ones
};

}  // namespace shardwire::restore
