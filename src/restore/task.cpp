// SPDX-License-Identifier: Apache-2.0
#include "restore/task.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <tuple>
#include <utility>

#include "restore/verdict.hpp"

namespace shardwire::restore {

namespace {

// Of a stage that has an account.
const char* span_name_of(Stage stage) {
  constexpr const char* names[] = {"shardwire.restore.plan", "shardwire.restore.bind", "shardwire.restore.move",
                                   "shardwire.restore.verify", "shardwire.restore.commit"};
  return names[static_cast<std::size_t>(stage)];
}

// Time for bytes in flight when a restore is stopped.
constexpr auto stopping_grace = std::chrono::milliseconds(500);
// Each costs a plan and a connection. A withdrawal of another publication of the same source causes only a few.
constexpr int max_path_losses = 8;
// How often the restore looks at its sources and its progress.
constexpr auto min_look_interval = std::chrono::milliseconds(1);
constexpr auto max_look_interval = std::chrono::milliseconds(50);
// A wait that is worth a warning. WaitClock notes those of 32 s.
constexpr auto waits_long = std::chrono::seconds(30);

Error path_error(ErrorCode code, const Source& source, const std::string& why) {
  return {code, fmt::format("source rank {}: {}", to_int(source.rank()), why), std::vector<Rank>{source.rank()}};
}

}  // namespace

// --- stages ---

StageClock::StageClock(const Clock& clock, Clock::Time began, double join_seconds, bool keeps_spans)
    : clock_(clock), began_(began), stage_began_(began), keeps_spans_(keeps_spans) {
  seconds_.join = join_seconds;
}

void StageClock::enter(Stage stage) {
  const Clock::Time now = clock_.now();
  *account_ += seconds_of(now - stage_began_);
  if (keeps_spans_ && spans_.size() < max_spans) {
    spans_.push_back({account_name_, stage_began_, now});
  }
  stage_began_ = now;
  stage_ = stage;
  switch (stage) {
    case Stage::plan: account_ = &seconds_.plan; break;
    case Stage::bind: account_ = &seconds_.bind; break;
    case Stage::move: account_ = &seconds_.move; break;
    case Stage::verify: account_ = &seconds_.verify; break;
    case Stage::commit: account_ = &seconds_.commit; break;
    case Stage::stopping: return;
    case Stage::done:
    case Stage::failed:
      stage_range_.end();
      restore_range_.end();
      return;
  }
  account_name_ = span_name_of(stage);
  stage_range_.begin(account_name_);
}

StageSeconds StageClock::seconds() const {
  StageSeconds seconds = seconds_;
  seconds.wall = seconds_.join + seconds_of(stage_began_ - began_);
  return seconds;
}

std::vector<telemetry::Span> StageClock::spans(std::vector<telemetry::Attribute> attributes) const {
  attributes.emplace_back("shardwire.seconds.join", seconds_.join);
  std::vector<telemetry::Span> spans;
  spans.push_back({"shardwire.restore", began_, stage_began_, std::move(attributes)});
  spans.insert(spans.end(), spans_.begin(), spans_.end());
  return spans;
}

// --- the frame ---

RestoreTask::RestoreTask(const Context& context, std::shared_ptr<detail::RestoreState> state, Request request,
                         Clock::Time began, double join_seconds)
    : context_(context),
      state_(std::move(state)),
      replaces_withdrawn_(!request.exchange),
      replaces_paths_(!request.exchange || !request.exchange->rounds),
      resumable_(!request.exchange),
      stages_(context.clock, began, join_seconds, context.trace != nullptr),
      began_(began),
      limit_(request.options.timeout),
      deadline_(context.clock),
      progress_(context.clock),
      grace_(context.clock),
      restore_(context, *this, std::move(request), began) {
}

RestoreTask::~RestoreTask() = default;

void RestoreTask::start() {
  const auto left = limit_ - (context_.clock.now() - began_);
  deadline_.start(left, [this] { fail(std::make_exception_ptr(restore_.late(stages_.stage()))); });
  arm_progress();
  if (Probe* const probe = context_.probe) probe->entered(Stage::plan);
  restore_.start();
}

void RestoreTask::proceed() {
  state_->note_proceeds();
  if (!is_done() && ending_ == Ending::none) restore_.proceed();
}

bool RestoreTask::on_values(const std::map<TensorKey, SharedValue>& values) {
  try {
    return state_->offer(values);
  } catch (...) {
    fail(std::current_exception());
    return false;
  }
}

void RestoreTask::on_stage(Stage stage) {
  stages_.enter(stage);
  if (Probe* const probe = context_.probe) probe->entered(stage);
}

bool RestoreTask::payload(const wire::PayloadHeader& header, transport::Incoming& incoming) {
  Movement* const movement = restore_.movement();
  return movement != nullptr && movement->payload(header, incoming);
}

// --- progress ---

// Polls without a callback too, since on_progress() can be called while the restore runs.
void RestoreTask::arm_progress() {
  const auto [callback, interval] = state_->listener();
  const Duration next =
      callback ? std::clamp<Duration>(interval, min_look_interval, max_look_interval) : Duration(max_look_interval);
  progress_.start(next, [this] {
    look_at_progress();
    if (!is_done()) arm_progress();
  });
}

// An interval of 0 means every change that is seen.
void RestoreTask::look_at_progress() {
  if (Movement* const movement = restore_.movement()) movement->look_after_sources();
  if (is_done()) return;
  look_at_wait();
  const auto [callback, interval] = state_->listener();
  if (!callback) return;
  if (interval <= Duration::zero()) {
    const Progress now = progress();
    const bool same = reported_ && std::string_view(reported_->stage) == now.stage &&
                      reported_->done_bytes == now.done_bytes && reported_->total_bytes == now.total_bytes;
    if (same) return;
  } else if (reported_ && context_.clock.now() - reported_at_ < interval) {
    return;
  }
  report_progress();
}

void RestoreTask::look_at_wait() {
  const auto lasts = wait_.look(context_.clock.now(), stages_.stage(), restore_.advance(stages_.stage()));
  if (!lasts) return;
  const std::string awaited = restore_.awaited(stages_.stage());
  if (awaited.empty()) return;
  context_.log(*lasts < waits_long ? LogLevel::info : LogLevel::warning,
               fmt::format("{} has waited {:.0f} s for {}", restore_.title(), seconds_of(*lasts), awaited));
}

Progress RestoreTask::progress() {
  Progress progress{name_of(stages_.stage()), 0, 0};
  std::tie(progress.done_bytes, progress.total_bytes) = restore_.progress();
  return progress;
}

void RestoreTask::report_progress() {
  const auto callback = state_->listener().first;
  if (!callback) return;
  const Progress progress = this->progress();
  reported_ = progress;
  reported_at_ = context_.clock.now();
  try {
    callback(progress);
  } catch (...) {
    if (!is_done()) {
      caller_failed(std::current_exception());
      return;
    }
    if (!error_) error_ = std::current_exception();
  }
}

// --- failures ---

void RestoreTask::fail(const std::exception_ptr& error) {
  if (is_done() || ending_ == Ending::finish) return;
  end(with_gaps(error, missing()));
}

void RestoreTask::on_source_ended(const Source& source, const std::exception_ptr& error) {
  if (!is_done() && ending_ == Ending::none && source.state() == Source::State::withdrawn) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& reason) {
      if (restart(source.binding().record, reason)) return;
    } catch (const std::exception&) {  // another plan does not help
    }
  }
  fail(error);
}

// A fabric may refuse all reads over one connection. A source that has withdrawn the publication refuses the next lease
// on it.
void RestoreTask::on_path_lost(Source& source, PathLoss loss, const std::string& why) {
  if (is_done() || ending_ != Ending::none) return;
  const bool once_more = loss == PathLoss::aborted || ++path_losses_ < max_path_losses;
  switch (loss) {
    case PathLoss::aborted:  // only time is lost, unless the restore may not restart
      if (restart(std::nullopt, std::nullopt)) return;
      return fail(std::make_exception_ptr(path_error(ErrorCode::transport_failed, source, why)));
    case PathLoss::ended:
      if (once_more && restart(std::nullopt, std::nullopt)) return;
      return fail(std::make_exception_ptr(path_error(ErrorCode::transport_failed, source, why)));
    case PathLoss::refused: {
      const Error reason = path_error(once_more ? ErrorCode::withdrawn : ErrorCode::transport_failed, source, why);
      if (once_more && restart(std::nullopt, reason)) return;
      return end(with_gaps(std::make_exception_ptr(reason), missing()));
    }
  }
}

// Refused outside the stages that read. In an exchange, bytes of this wave are still where they were.
bool RestoreTask::restart(std::optional<wire::PublicationRecord> gone, std::optional<Error> withdrawn) {
  const Stage stage = stages_.stage();
  if (!reads(stage) || !(withdrawn ? replaces_withdrawn_ : replaces_paths_)) return false;
  if (gone && withdrawn) restore_.note_withdrawn(Rank{gone->layout_rank}, *withdrawn);
  gone_ = std::move(gone);
  withdrawn_ = std::move(withdrawn);
  ending_ = Ending::restart;
  stop();
  return true;
}

bool RestoreTask::caller_failed(const std::exception_ptr& error) {
  if (is_done() || ending_ == Ending::finish) return false;
  end(error);
  return true;
}

void RestoreTask::fabric_broke(const std::exception_ptr& error) {
  fabrics_dead_ = true;
  resumable_ = false;
  if (ending_ != Ending::finish) return fail(error);
  on_quieter();
}

void RestoreTask::end(const std::exception_ptr& error) {
  ending_ = Ending::finish;
  error_ = error;
  deadline_.stop();
  stop();
}

// Every failed restore reports them.
std::vector<Gap> RestoreTask::missing() const {
  return restore_.movement() != nullptr ? restore_.movement()->missing() : std::vector<Gap>();
}

// --- the end ---

void RestoreTask::stop() {
  if (stages_.stage() != Stage::stopping) stages_.enter(Stage::stopping);
  restore_.stop();
  if (restore_.quiet(fabrics_dead_)) return on_quieter();
  // Writes in flight into the caller's memory end by themselves, unless a source hangs.
  grace_.start(stopping_grace, [this] {
    if (Movement* const movement = restore_.movement()) movement->abort_connections(ending_ == Ending::restart);
  });
}

void RestoreTask::on_quieter() {
  if (stages_.stage() != Stage::stopping || !restore_.quiet(fabrics_dead_)) return;
  if (ending_ == Ending::finish) return finish();
  // Deferred: the stopped objects are still on the call stack.
  context_.defer([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired() || ending_ != Ending::restart) return;
    ending_ = Ending::none;
    grace_.stop();
    restore_.restart(std::exchange(gone_, std::nullopt), std::exchange(withdrawn_, std::nullopt));
  });
}

RestoreReport RestoreTask::report() const {
  return restore_.report(stages_.seconds(), error_ != nullptr);
}

void RestoreTask::trace(const RestoreReport& report) const {
  telemetry::Trace* const trace = context_.trace;
  if (trace == nullptr) return;
  try {
    restore_.trace_moved();
    trace->add("restore", stages_.spans(restore_.attributes(report, error_)));
  } catch (const std::bad_alloc&) {  // the trace lacks spans, and the restore ends
  }
}

void RestoreTask::finish() {
  auto left = error_ && resumable_ ? restore_.leave() : nullptr;
  if (left && left->planning &&
      restore_.run() != nullptr) {  // parts may have been under way when their source was lost
    error_ = with_last_gaps(error_, left->planning->plan, left->missing, left->unavailable.lost);
  }
  restore_.release();
  stages_.enter(error_ ? Stage::failed : Stage::done);
  deadline_.stop();
  grace_.stop();
  progress_.stop();
  alive_.reset();
  report_progress();
  RestoreReport last = report();
  trace(last);
  context_.log(LogLevel::info, restore_.outcome(last, error_));
  auto values = error_ ? std::map<TensorKey, SharedValue>{} : restore_.take_values();
  const auto taken = restore_.taken();
  if (!error_) restore_.keep();
  if (!error_ && taken && state_->restored) state_->restored(taken->step, taken->origin);
  state_->finish(std::move(last), std::move(values), error_, std::move(left));
  context_.finished(*this);
}

void RestoreTask::stop_writing() {
  if (is_done()) return;
  resumable_ = false;
  restore_.stop();
  if (!error_) {
    error_ = std::make_exception_ptr(Error(ErrorCode::cancelled, "the session was closed", missing()));
  }
  stages_.enter(Stage::stopping);
  ending_ = Ending::finish;
  if (Movement* const movement = restore_.movement()) movement->abort_connections(false);
}

bool RestoreTask::written() const {
  if (is_done()) return true;
  const Movement* const movement = restore_.movement();
  return movement == nullptr || movement->written();
}

void RestoreTask::abandon() {
  if (is_done()) return;
  alive_.reset();
  RestoreReport last = report();
  trace(last);
  context_.log(LogLevel::info, restore_.outcome(last, error_));
  restore_.release();
  state_->finish(std::move(last), {}, error_);
  stages_.enter(Stage::failed);
}

}  // namespace shardwire::restore
