// SPDX-License-Identifier: Apache-2.0
#include "restore/operation.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "restore/verdict.hpp"
#include "support/ranks_of.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/trace.hpp"

namespace shardwire::restore {

namespace {

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

// For the log: why a restore has failed.
std::string why_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    return fmt::format("{}: {}", to_string(reason.code()), reason.what());
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "an exception of the caller";
  }
}

// An address may belong to another device by now.
std::unique_ptr<ParkedAttempt> take_earlier(const Context& context, const Request& request) {
  if (request.unfinished) return nullptr;
  auto earlier = context.cache.take(request.options.name, request.wanted, request.options.replicas);
  if (earlier && earlier->places != request.places) earlier.reset();
  return earlier;
}

Wanted wanted_by(Catalog catalog, const ParkedAttempt* earlier) {
  const auto shared = std::make_shared<const Catalog>(std::move(catalog));
  if (earlier != nullptr) return {shared, earlier->wanted.manifest, earlier->wanted.scope};
  return {shared, manifest_of(*shared), value_scope(*shared)};
}

// The publications that hold something of the plan, whether or not it is read from them.
std::vector<wire::PublicationRecord> holders_in(const Planning& planning) {
  std::set<Rank> ranks;
  for (const std::vector<Rank>& holders : planning.plan.holder_sets) ranks.insert(holders.begin(), holders.end());
  std::vector<wire::PublicationRecord> records;
  std::ranges::copy_if(planning.records, std::back_inserter(records),
                       [&](const auto& record) { return ranks.contains(Rank{record.layout_rank}); });
  return records;
}

}  // namespace

// --- the operation ---

RestoreOperation::RestoreOperation(const Context& context, std::shared_ptr<detail::RestoreState> state, Request request,
                                   Clock::Time began, double join_seconds)
    : context_(context),
      state_(std::move(state)),
      replaces_withdrawn_(!request.exchange),
      replaces_paths_(!request.exchange || !request.exchange->rounds),
      resumable_(!request.exchange),
      stages_(context.clock, began, join_seconds, context.trace != nullptr),
      deadline_(context.clock),
      progress_(context.clock),
      grace_(context.clock),
      callbacks_([this](const std::exception_ptr& error) { fail(error); }),
      earlier_(take_earlier(context, request)),
      target_(wanted_by(std::move(request.wanted), earlier_.get()), std::move(request.places), request.options,
              request.method, began, request.exchange && request.exchange->rounds),
      discovery_(
          context,
          {.planned = [this](std::shared_ptr<Planning> planning) { on_planned(std::move(planning)); },
           .stale = [this](const auto& records) { std::ranges::copy(records, std::back_inserter(target_.gone)); },
           .failed = [this](const std::exception_ptr& error) { fail(error); }},
          target_, earlier_ ? std::move(earlier_->planning) : nullptr),
      events_(context.copies, [this](const std::exception_ptr& error) { fail(error); }),
      commit_(context, target_.destination(),
              [this](const std::exception_ptr& error) {
                if (ending_ != Ending::none) return on_quieter();
                if (error) return fail(error);
                events_.record(target_.options, [this] { finish(); });
              }),
      reconnect_(context.clock) {
  target_.only = std::move(request.only);
  target_.digests = std::move(request.digests);
  if (request.unfinished) {
    before_ = std::exchange(request.unfinished->report, {});
    values_ = std::move(request.unfinished->values);
    if (request.unfinished->planning) search(std::move(request.unfinished), nullptr);
  }
  if (!request.exchange) return;
  discovery_.plan_together();
  target_.exchange_losses = request.exchange->losses;
  rounds_ = std::move(request.exchange->rounds);
}

void RestoreOperation::start() {
  const auto left = target_.options.timeout - (context_.clock.now() - target_.began);
  deadline_.start(left, [this] { fail(std::make_exception_ptr(late())); });
  arm_progress();
  if (context_.probe != nullptr) context_.probe->entered(Stage::plan);
  callbacks_.run([this] {
    if (const std::size_t managed = count_managed(target_.places); managed > 0) {
      context_.log(LogLevel::info, fmt::format("restore of '{}': {} tensors lie in managed memory, which is moved as "
                                               "memory of its device",
                                               target_.options.name, managed));
    }
    events_.await(target_.catalog(), target_.places);
    if (search_) return search_->start();
    if (target_.wanted.manifest->tensors.empty() && target_.catalog().values().empty()) return on_verified();
    discovery_.start();
  });
}

void RestoreOperation::enter(Stage stage) {
  stages_.enter(stage);
  if (context_.probe != nullptr) context_.probe->entered(stage);
}

// --- plan, attempt, commit ---

void RestoreOperation::on_planned(std::shared_ptr<Planning> planning) {
  if (const auto lost = lost_before_plan(planning->resolved)) {
    return fail(std::make_exception_ptr(*lost));
  }
  values_ = std::move(planning->resolved.values);
  zeroed_ = planning->resolved.zeroed;
  planned_ = std::move(planning);
  if (offer_values()) begin_attempt();
}

// False: the restore has to stand until proceed().
bool RestoreOperation::offer_values() {
  try {
    return state_->offer(values_);
  } catch (...) {
    fail(std::current_exception());
    return false;
  }
}

void RestoreOperation::proceed() {
  state_->note_proceeds();
  if (!is_done()) begin_attempt();
}

void RestoreOperation::begin_attempt() {
  if (!planned_ || ending_ != Ending::none) return;
  auto planning = std::exchange(planned_, nullptr);
  context_.look_ahead(holders_in(*planning));
  enter(Stage::bind);
  Attempt::Earlier earlier{.staging = std::move(staging_)};
  if (discovery_.used_earlier()) earlier.parked = std::move(earlier_);
  earlier_.reset();
  pass_over_silent(*planning);
  start_attempt(std::move(planning), std::move(earlier));
}

// A holder that has not answered this reader is its last choice. Other readers may have heard it, so they no longer agree on
// who reads from whom.
void RestoreOperation::pass_over_silent(Planning& planning) {
  if (!target_.outlives_sources || rounds_ || discovery_.used_earlier() || discovery_.silent().empty()) return;
  Unavailable unavailable;
  for (std::size_t i = 0; i < planning.records.size(); ++i) {
    const wire::PublicationRecord& record = planning.records[i];
    if (discovery_.silent().contains({record.member, record.epoch})) unavailable.silent.push_back(planning.holders[i]);
  }
  if (unavailable.silent.empty()) return;
  std::vector<PieceBox> all;
  for (const ScheduledPiece& item : planning.schedule.items) all.push_back({item.piece, planning.schedule.box(item)});
  plan_again(planning, all, unavailable);
  passed_over_ = std::move(unavailable.silent);
}

// All members of an exchange have to pick the same values, and to miss the same tensors: what a member published cannot
// be told once it is lost.
std::optional<Error> RestoreOperation::lost_before_plan(const ResolvedValues& resolved) const {
  if (!target_.exchange_losses) return std::nullopt;
  const std::vector<int> lost = context_.directory.lost_since(*target_.exchange_losses);
  if (lost.empty() || (resolved.values.empty() && resolved.skipped.empty() && resolved.zeroed.empty())) {
    return std::nullopt;
  }
  return Error(ErrorCode::peer_lost,
               fmt::format("member {} {} lost before its values were read", fmt::join(lost, ", "),
                           lost.size() == 1 ? "was" : "were"),
               support::ranks_of(lost));
}

void RestoreOperation::start_attempt(std::shared_ptr<Planning> planning, Attempt::Earlier earlier) {
  attempt_ = std::make_unique<Attempt>(
      context_,
      Attempt::Reports{.verified = [this] { on_verified(); },
                       .stage = [this](Stage stage) { enter(stage); },
                       .failed = [this](const std::exception_ptr& error) { fail(error); },
                       .source_ended = [this](const Source& source,
                                              const std::exception_ptr& error) { on_source_ended(source, error); },
                       .path_lost = [this](const Source& source, PathLoss loss,
                                           const std::string& why) { on_path_lost(source, loss, why); },
                       .quieter = [this] { on_quieter(); }},
      target_, events_, failures_, rounds_.get(), std::move(planning), std::move(earlier));
  attempt_->start();
}

void RestoreOperation::on_verified() {
  if (attempt_ && !attempt_->undelivered().empty()) return replace_lost_soon();
  callbacks_.run([this] {
    if (target_.options.bind_only) return events_.record(target_.options, [this] { finish(); });
    enter(Stage::commit);
    commit_.start(values_, zeroed_);
  });
}

// --- lost sources ---

// Deferred: the attempt is still on the call stack.
void RestoreOperation::replace_lost_soon() {
  const Duration wait = failures_.take_wait();
  if (wait == Duration::zero()) return context_.defer(callbacks_.wrap([this] { replace_lost(); }));
  reconnect_.start(wait, callbacks_.wrap([this] { replace_lost(); }));
}

// Another attempt moves what lost sources have not delivered. All other bytes are in place and confirmed.
void RestoreOperation::replace_lost() {
  if (ending_ != Ending::none || !attempt_) return;  // another plan was faster
  const std::vector<PieceBox> left = attempt_->undelivered();
  if (left.empty()) return;
  attempt_->find_copies();
  corruption_.add(attempt_->ledger().corrupt());
  const Plan& plan = attempt_->planning().plan;
  const auto gaps = without_holder(plan, left, attempt_->lost());
  if (!gaps.empty() && !attempt_->may_be_held_later()) return fail(with_gaps(attempt_->loss(), gaps));
  if (auto unsound = without_holder(plan, left, attempt_->lost(), corruption_.holders());
      unsound.size() > gaps.size()) {
    return fail(std::make_exception_ptr(corrupt_everywhere(unsound, attempt_->planning(), corruption_.holders())));
  }
  if (!attempt_->ledger().accounts_for_all()) {
    return fail(std::make_exception_ptr(Error(ErrorCode::internal, "bytes of lost sources are not accounted for")));
  }
  before_ = report_without(left, context_.trace);
  abandoned_bytes_ = {};
  std::unique_ptr<Attempt> last = std::move(attempt_);  // leave() would resume a released one
  last->release();
  staging_ = last->take_staging();
  Unavailable unavailable = last->unavailable(corruption_.holders());
  unavailable.silent = pass_over(plan, left, unavailable);
  const auto planning = last->share_planning();
  const std::exception_ptr loss = last->loss();
  last.reset();
  if (gaps.empty()) return move_again(planning, left, unavailable);
  auto unfinished = std::make_unique<Unfinished>();
  unfinished->planning = planning;
  unfinished->missing = left;
  unfinished->unavailable = std::move(unavailable);
  enter(Stage::plan);
  search(std::move(unfinished), loss);
  search_->start();
}

void RestoreOperation::search(std::unique_ptr<Unfinished> unfinished, std::exception_ptr loss) {
  search_ = std::make_unique<HolderSearch>(
      context_, target_, std::move(unfinished), std::move(loss),
      HolderSearch::Events{.found = [this] { context_.defer(callbacks_.wrap([this] { resume(); })); },
                           .failed = [this](const std::exception_ptr& error) { fail(error); }});
}

// The next plan also passes over holders that were silent in earlier attempts. Once all holders of some box were, it asks
// them again.
std::vector<Rank> RestoreOperation::pass_over(const Plan& plan, std::span<const PieceBox> missing,
                                              const Unavailable& of_attempt) {
  for (const Rank holder : of_attempt.silent) {
    if (!is_in(passed_over_, holder)) passed_over_.push_back(holder);
  }
  std::vector<Rank> without = of_attempt.lost;
  without.insert(without.end(), passed_over_.begin(), passed_over_.end());
  if (!without_holder(plan, missing, without).empty()) passed_over_ = of_attempt.silent;
  return passed_over_;
}

void RestoreOperation::plan_again(Planning& planning, std::span<const PieceBox> boxes, const Unavailable& unavailable) {
  Replan again = replan(planning.plan, planning.schedule, planning.from, boxes, unavailable, target_.options.replicas);
  planning.plan = std::move(again.plan);
  planning.schedule = std::move(again.schedule);
  replaced_ = true;
}

void RestoreOperation::move_again(std::shared_ptr<Planning> planning, std::span<const PieceBox> missing,
                                  const Unavailable& unavailable) {
  plan_again(*planning, missing, unavailable);
  enter(Stage::bind);
  start_attempt(std::move(planning), {.staging = std::move(staging_), .lost = unavailable.lost});
}

// What was moved so far, as if only all but `missing` had been planned.
RestoreReport RestoreOperation::report_without(std::span<const PieceBox> missing, telemetry::Trace* trace) const {
  RestoreReport moved = report_of_attempt({}, false, trace);
  const bool moves = tally() != nullptr;
  for (const PieceBox& one : missing) {
    if (moves) moved.needed_bytes -= bytes_of(attempt_->planning(), *target_.wanted.manifest, one);
  }
  moved.lost = attempt_->replaced();
  moved.resent_bytes = moved.moved_bytes + moved.local_bytes - moved.overread_bytes - moved.needed_bytes;
  RestoreReport report = before_;
  report += moved;
  return report;
}

// --- a restore that has ended, and is resumed, and one that waits for another holder ---

std::unique_ptr<Unfinished> RestoreOperation::leave() {
  if (search_) {
    auto left = search_->take();
    left->report = before_;
    left->values = std::move(values_);
    return left;
  }
  auto left = std::make_unique<Unfinished>();
  if (attempt_ && target_.outlives_sources) {
    left->missing = attempt_->unproven();
    left->report = report_without(left->missing);
    left->planning = attempt_->share_planning();
    left->unavailable = attempt_->unavailable(corruption_.holders());
    left->values = std::move(values_);
  } else {
    left->report = before_;
    left->report += report_of_attempt({}, false);
    left->report.needed_bytes = 0;
    left->report.resent_bytes = left->report.moved_bytes + left->report.local_bytes - left->report.overread_bytes;
  }
  return left;
}

// Every missing box has a holder.
void RestoreOperation::resume() {
  if (ending_ != Ending::none || !search_) return;
  const auto left = std::exchange(search_, nullptr)->take();
  zeroed_ = left->planning->resolved.zeroed;
  if (left->missing.empty()) return on_verified();
  move_again(left->planning, left->missing, left->unavailable);
}

// --- progress ---

// Polls without a callback too, since on_progress() can be called while the restore runs.
void RestoreOperation::arm_progress() {
  const auto [callback, interval] = state_->listener();
  const Duration next =
      callback ? std::clamp<Duration>(interval, min_look_interval, max_look_interval) : Duration(max_look_interval);
  progress_.start(next, [this] {
    look_at_progress();
    if (!is_done()) arm_progress();
  });
}

// An interval of 0 means every change that is seen.
void RestoreOperation::look_at_progress() {
  if (attempt_) attempt_->look_after_sources();
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

void RestoreOperation::look_at_wait() {
  const auto lasts = wait_.look(context_.clock.now(), stages_.stage(), advance());
  if (!lasts) return;
  const std::string what = awaited();
  if (what.empty()) return;
  context_.log(*lasts < waits_long ? LogLevel::info : LogLevel::warning,
               fmt::format("{} has waited {:.0f} s for {}", title(), seconds_of(*lasts), what));
}

// Bytes in place and bytes wanted, in all.
Progress RestoreOperation::progress() const {
  Progress progress{name_of(stages_.stage()), before_.needed_bytes, before_.needed_bytes};
  if (search_) {
    progress.total_bytes += search_->missing_bytes();
  } else if (const move::Tally* const moved = tally()) {
    progress.done_bytes += moved->done_bytes();
    progress.total_bytes += moved->expected_bytes();
  }
  return progress;
}

void RestoreOperation::report_progress() {
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

void RestoreOperation::fail(const std::exception_ptr& error) {
  if (is_done() || ending_ == Ending::finish) return;
  end(with_gaps(error, missing()));
}

void RestoreOperation::on_source_ended(const Source& source, const std::exception_ptr& error) {
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
void RestoreOperation::on_path_lost(const Source& source, PathLoss loss, const std::string& why) {
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
bool RestoreOperation::restart(std::optional<wire::PublicationRecord> gone, std::optional<Error> withdrawn) {
  const Stage stage = stages_.stage();
  if (!reads(stage) || !(withdrawn ? replaces_withdrawn_ : replaces_paths_)) return false;
  if (gone && withdrawn) {
    withdrawn_source_ = LostSource{Rank{gone->layout_rank}, withdrawn->code(), withdrawn->what(),
                                   target_.seconds_at(context_.clock.now())};
  }
  gone_ = std::move(gone);
  withdrawn_ = std::move(withdrawn);
  ending_ = Ending::restart;
  stop();
  return true;
}

bool RestoreOperation::caller_failed(const std::exception_ptr& error) {
  if (is_done() || ending_ == Ending::finish) return false;
  end(error);
  return true;
}

void RestoreOperation::fabric_broke(const std::exception_ptr& error) {
  fabrics_dead_ = true;
  resumable_ = false;
  if (ending_ != Ending::finish) return fail(error);
  on_quieter();
}

void RestoreOperation::end(const std::exception_ptr& error) {
  ending_ = Ending::finish;
  error_ = error;
  deadline_.stop();
  stop();
}

// Every failed restore reports them.
std::vector<Gap> RestoreOperation::missing() const {
  return attempt_ ? attempt_->ledger().missing() : std::vector<Gap>();
}

// --- the end ---

void RestoreOperation::stop() {
  if (stages_.stage() != Stage::stopping) stages_.enter(Stage::stopping);
  stop_parts();
  if (is_quiet()) return on_quieter();
  // Writes in flight into the caller's memory end by themselves, unless a source hangs.
  grace_.start(stopping_grace, [this] {
    if (attempt_) attempt_->abort_connections(ending_ == Ending::restart);
  });
}

// They begin nothing more.
void RestoreOperation::stop_parts() {
  reconnect_.stop();
  discovery_.stop();
  if (search_) search_->stop();
  if (attempt_) attempt_->stop();
  if (rounds_) rounds_->stop();
}

// No job of it accesses the caller's memory.
bool RestoreOperation::is_quiet() const {
  return commit_.quiet() && (!attempt_ || attempt_->quiet(fabrics_dead_));
}

void RestoreOperation::on_quieter() {
  if (stages_.stage() != Stage::stopping || !is_quiet()) return;
  if (ending_ == Ending::finish) return finish();
  // Deferred: the stopped objects are still on the call stack.
  context_.defer(callbacks_.wrap([this] {
    if (ending_ != Ending::restart) return;
    ending_ = Ending::none;
    grace_.stop();
    restart_now();
  }));
}

// Moves every byte again: received bytes belong to an outdated generation.
void RestoreOperation::restart_now() {
  const ByteCount arrived = progress().done_bytes;
  if (gone_) target_.gone.push_back(*std::exchange(gone_, std::nullopt));
  if (const std::unique_ptr<Attempt> last = std::move(attempt_)) {  // leave() would resume a released one
    last->release();
    for (std::size_t i = 0; i < method_count && last->tally() != nullptr; ++i) {
      abandoned_bytes_[i] += last->tally()->method_bytes(static_cast<Method>(i));
    }
    const auto losses = last->losses();
    before_.lost.insert(before_.lost.end(), losses.begin(), losses.end());
    if (withdrawn_source_) withdrawn_source_->boxes_replanned = last->planning().schedule.items.size();
    staging_ = last->take_staging();
  }
  if (withdrawn_source_) {
    withdrawn_source_->resent_bytes = arrived;
    before_.lost.push_back(*std::exchange(withdrawn_source_, std::nullopt));
  }
  before_.resent_bytes += std::exchange(before_.needed_bytes, 0);  // moved for another generation
  corruption_ = {};
  replaced_ = false;
  values_.clear();
  zeroed_.clear();
  planned_.reset();
  events_.forget();
  earlier_.reset();
  enter(Stage::plan);
  discovery_.restart(std::exchange(withdrawn_, std::nullopt));
}

void RestoreOperation::finish() {
  auto left = error_ && resumable_ ? leave() : nullptr;
  if (left && left->planning && attempt_) {  // parts may have been under way when their source was lost
    error_ = with_last_gaps(error_, left->planning->plan, left->missing, left->unavailable.lost);
  }
  if (error_ && (attempt_ || search_)) {
    error_ = with_missing_bytes(error_, *target_.wanted.manifest, left && left->planning && !target_.only);
  }
  release();
  stages_.enter(error_ ? Stage::failed : Stage::done);
  deadline_.stop();
  grace_.stop();
  progress_.stop();
  report_progress();
  RestoreReport last = last_report();
  auto values = error_ ? std::map<TensorKey, SharedValue>{} : std::move(values_);
  if (!error_ && attempt_ && state_->restored) {
    const wire::PublicationRecord& any = attempt_->planning().records.front();
    state_->restored(any.step, any.origin);
  }
  if (!error_) keep();
  state_->finish(std::move(last), std::move(values), error_, std::move(left));
  context_.finished(*this);
}

void RestoreOperation::stop_writing() {
  if (is_done()) return;
  resumable_ = false;
  stop_parts();
  if (!error_) {
    error_ = std::make_exception_ptr(Error(ErrorCode::cancelled, "the session was closed", missing()));
  }
  stages_.enter(Stage::stopping);
  ending_ = Ending::finish;
  if (attempt_) attempt_->abort_connections(false);
}

bool RestoreOperation::written() const {
  return is_done() || !attempt_ || attempt_->written();
}

void RestoreOperation::abandon() {
  if (is_done()) return;
  release();
  stages_.enter(Stage::failed);  // before callbacks, which may destroy the handle
  state_->finish(last_report(), {}, error_);
  context_.finished(*this);
}

// Returns leases and events, and ignores further answers.
void RestoreOperation::release() {
  if (attempt_) attempt_->release();
  discovery_.stop();
  callbacks_.end();
  events_.take_back();
  if (rounds_) rounds_->stop();
}

// Keeps the attempt for the next restore of the same catalog.
void RestoreOperation::keep() {
  if (!attempt_ || replaced_) return;
  if (auto parked = attempt_->park()) context_.cache.keep(std::move(parked));
}

// --- queries ---

Error RestoreOperation::late() const {
  const Stage stage = stages_.stage();
  if (planned_) return {ErrorCode::timed_out, "the deadline passed while the restore stood at its values"};
  if (stage == Stage::commit) return {ErrorCode::timed_out, "the deadline passed while zeros were written"};
  if (attempt_ && reads(stage)) return attempt_->late();
  return search_ ? search_->late() : discovery_.late();
}

std::string RestoreOperation::awaited() const {
  const Stage stage = stages_.stage();
  if (planned_ || stage == Stage::commit || stage == Stage::stopping) return "";
  if (attempt_ && reads(stage)) return attempt_->awaited();
  return search_ ? search_->awaited() : discovery_.awaited();
}

std::uint64_t RestoreOperation::advance() const {
  return progress().done_bytes + (attempt_ && stages_.stage() != Stage::move ? attempt_->answers() : 0);
}

std::string RestoreOperation::title() const {
  const int rank = to_int(target_.catalog().layout_rank());
  if (target_.exchange_losses) return fmt::format("the exchange as layout rank {}", rank);
  if (target_.only) return fmt::format("a copy of '{}' of layout rank {}", target_.options.name, rank);
  return fmt::format("'{}' as layout rank {}", target_.options.name, rank);
}

std::string RestoreOperation::outcome(const RestoreReport& report) const {
  const std::string done = target_.exchange_losses || target_.only ? "done"
                           : target_.options.bind_only             ? "bound"
                                                                   : "restored";
  return fmt::format("{} is {}{}{}", title(), error_ ? "not " : "", done, figures_text(report)) +
         (error_ ? "; " + why_text(error_) : "");
}

void RestoreOperation::trace_moved(telemetry::Trace& trace, const std::vector<MovedRow>& rows) const {
  for (const auto& [row, began] : rows) {
    if (began == move::Tally::WallClock::time_point::max()) continue;
    const std::string_view path = row.path;
    const auto slash = path.find('/');
    const auto took =
        std::chrono::duration_cast<Clock::Time::duration>(std::chrono::duration<double>(row.measured_seconds));
    trace.add("source rank " + std::to_string(to_int(row.rank)) + ": " + row.path,
              {{"shardwire.source.move", began, began + took}},
              {{"shardwire.source.rank", to_int(row.rank)},
               {"shardwire.transport", path.substr(0, slash)},
               {"shardwire.method", slash == std::string_view::npos ? path : path.substr(slash + 1)},
               {"shardwire.bytes", static_cast<std::int64_t>(row.bytes)},
               {"shardwire.seconds.predicted", row.predicted_seconds}});
  }
}

void RestoreOperation::trace_stages(telemetry::Trace& trace, const RestoreReport& report) const {
  const std::string_view operation = target_.exchange_losses     ? "exchange"
                                     : target_.only              ? "copy"
                                     : target_.options.bind_only ? "bind"
                                                                 : "restore";
  std::vector<telemetry::Attribute> attributes{
      {"shardwire.operation", operation},
      {"shardwire.publication.name", target_.options.name},
      {"shardwire.layout.rank", to_int(target_.catalog().layout_rank())},
      {"shardwire.bytes.needed", static_cast<std::int64_t>(report.needed_bytes)},
      {"shardwire.bytes.moved", static_cast<std::int64_t>(report.moved_bytes)}};
  if (report.step) attributes.push_back({"shardwire.step", *report.step});
  if (const auto code = telemetry::code_of(error_)) attributes.push_back({"error.type", to_string(*code)});
  attributes.push_back({"shardwire.seconds.join", stages_.seconds().join});
  trace.add("restore", stages_.spans(), attributes);
}

RestoreReport RestoreOperation::last_report() const {
  RestoreReport report = before_;
  report += report_of_attempt(stages_.seconds(), error_ != nullptr, context_.trace);
  if (context_.trace != nullptr) trace_stages(*context_.trace, report);
  if (context_.logs(LogLevel::info)) context_.log(LogLevel::info, outcome(report));
  return report;
}

ReportInput RestoreOperation::report_input(const ChosenTransfers& chosen, const StageSeconds& seconds,
                                           bool failed) const {
  ReportInput input{.options = target_.options,
                    .fabrics = context_.fabrics,
                    .session = context_.facts(),
                    .seconds = seconds,
                    .failed = failed,
                    .planning = attempt_ ? &attempt_->planning() : nullptr,
                    .manifest = target_.wanted.manifest.get(),
                    .bindings = attempt_ ? bindings_of(attempt_->sources()) : std::vector<const Binding*>(),
                    .transfers = chosen.transfers.get(),
                    .predictions = chosen.predictions,
                    .staged_local = chosen.staged_local,
                    .abandoned_bytes = abandoned_bytes_,
                    .rounds = rounds_ ? &rounds_->group() : nullptr};
  if (const move::Tally* const moved = tally()) {
    input.moved.emplace(Moved{*moved, attempt_->staging_peak_bytes(), attempt_->digest_seconds()});
  }
  return input;
}

RestoreReport RestoreOperation::report_of_attempt(const StageSeconds& seconds, bool failed,
                                                  telemetry::Trace* trace) const {
  const ChosenTransfers chosen = attempt_ ? attempt_->chosen() : ChosenTransfers();
  const ReportInput input = report_input(chosen, seconds, failed);
  std::vector<MovedRow> rows = moved_rows(input);
  if (trace != nullptr && input.moved) trace_moved(*trace, rows);
  RestoreReport report = make_report(input, std::move(rows));
  if (attempt_) report.lost = attempt_->losses();
  if (attempt_) {
    for (const FoundCorrupt& one : attempt_->ledger().corrupt()) report.corrupt.push_back(one.box);
  }
  return report;
}

}  // namespace shardwire::restore
