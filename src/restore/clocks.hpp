// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "restore/probe.hpp"
#include "runtime/clock.hpp"
#include "shardwire/options.hpp"
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
  /// From the call to the last stage, and the stages in it; empty if it keeps none. Those of one name sum to their seconds().
  [[nodiscard]] const std::vector<telemetry::Span>& spans() const { return spans_; }

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

/// How long a restore has stood still: neither its stage, nor its bytes, nor the number of answers where none move, has changed.
/// Threads: loop thread only.
class WaitClock {
 public:
  /// The length of a wait when it reaches 2 s, 4 s, 8 s and so on. Empty at all other times.
  std::optional<Duration> look(Clock::Time now, Stage stage, std::uint64_t advance) {
    if (!since_ || stage != stage_ || advance != advance_) {
      since_ = now;
      stage_ = stage;
      advance_ = advance;
      next_ = first;
    }
    const Duration lasts = now - *since_;
    if (lasts < next_) return std::nullopt;
    while (next_ <= lasts) next_ *= 2;
    return lasts;
  }

 private:
  static constexpr Duration first = std::chrono::seconds(2);

  std::optional<Clock::Time> since_;  // empty before the first look
  Stage stage_{};
  std::uint64_t advance_ = 0;
  Duration next_ = first;
};

}  // namespace shardwire::restore
