// SPDX-License-Identifier: Apache-2.0
#include "session/restore/run.hpp"

#include <fmt/ranges.h>

#include "support/list_of.hpp"

namespace shardwire {

namespace {

const char* name_of(int stage) {
  constexpr const char* names[] = {"plan", "bind", "move", "verify", "commit", "stopping", "done"};
  return names[stage];
}

// Time for bytes that are on their way when a restore is stopped.
constexpr auto stopping_grace = std::chrono::milliseconds(500);

}  // namespace

RestoreRun::RestoreRun(Core& core, std::shared_ptr<detail::RestoreState> state, Catalog wanted, TensorPlaces places,
                       RestoreOptions options, Withdrawal withdrawal, Clock::time_point began, double join_seconds,
                       std::shared_ptr<GroupedHandover> grouped)
    : core_(core),
      state_(std::move(state)),
      catalog_(std::make_shared<const Catalog>(std::move(wanted))),
      wanted_(*catalog_),
      places_(std::move(places)),
      options_(std::move(options)),
      withdrawal_(withdrawal),
      grouped_(std::move(grouped)),
      began_(began),
      stage_began_(began),
      deadline_(core.loop()),
      discovery_grace_(core.loop()),
      pace_(core.loop()),
      progress_(core.loop()),
      needs_values_(wants_values(wanted_)),
      next_request_(first_request()),
      repetition_(core.restore_cache().take(options_.from, wanted_)) {
  // An address may be another device's by now.
  if (repetition_.cached() != nullptr && repetition_.cached()->places != places_) repetition_.forget();
  const CachedRestore* cached = repetition_.cached();
  manifest_ = cached != nullptr ? cached->manifest : manifest_of(wanted_);
  if (cached != nullptr) needs_values_ = cached->needs_values;
  seconds_.join = join_seconds;
}

RestoreRun::~RestoreRun() = default;

void RestoreRun::start() {
  deadline_.start(options_.deadline - (Clock::now() - began_), [this] { guarded([this] { deadline_passed(); }); });
  arm_progress();
  guarded([this] { await_destination(); });
  directory_changed();
}

void RestoreRun::directory_changed() {
  if (stage_ != Stage::plan) return;
  guarded([this] {
    if (!manifest_->tensors.empty() || !wanted_.values().empty()) core_.membership().watch(options_.from);
    try_to_plan();
  });
}

void RestoreRun::enter(Stage stage) {
  const auto now = Clock::now();
  *account_ += std::chrono::duration<double>(now - stage_began_).count();
  stage_began_ = now;
  stage_ = stage;
  switch (stage) {
    case Stage::plan: account_ = &seconds_.plan; break;
    case Stage::bind: account_ = &seconds_.bind; break;
    case Stage::move: account_ = &seconds_.move; break;
    case Stage::verify: account_ = &seconds_.verify; break;
    case Stage::commit: account_ = &seconds_.commit; break;
    case Stage::stopping:
    case Stage::done: break;  // what stopping costs belongs to the stage that failed
  }
}

void RestoreRun::arm_progress() {
  const auto [callback, interval] = state_->listener();
  // Nobody may have asked yet: look again soon, since on_progress() can be called while the restore runs.
  const Duration next = callback ? interval : Duration(std::chrono::milliseconds(50));
  progress_.start(next, [this] {
    note_arrivals();
    if (stage_ == Stage::done) return;
    report_progress(false);
    if (stage_ != Stage::done) arm_progress();
  });
}

void RestoreRun::report_progress(bool last) {
  const auto callback = state_->listener().first;
  if (!callback) return;
  Progress progress{name_of(static_cast<int>(last ? Stage::done : stage_)), 0, 0};
  if (engine_) {
    progress.done_bytes = engine_->tally().done_bytes();
    progress.total_bytes = engine_->tally().expected_bytes();
  }
  try {
    callback(progress);
  } catch (...) {
    if (stage_ != Stage::done) return caller_failed(std::current_exception());
    if (!error_) error_ = std::current_exception();
  }
}

// --- the end ---

void RestoreRun::fail(const std::exception_ptr& error) {
  if (stage_ == Stage::done || (stage_ == Stage::stopping && !planning_anew_)) return;
  if (planning_anew_ || !withdrawal_only(error) || !begin_anew()) end_with(with_gaps(error));
}

// Unless what it has written is what a new plan would read, or nothing is read any more.
bool RestoreRun::begin_anew() {
  const bool reading = stage_ == Stage::bind || stage_ == Stage::move || stage_ == Stage::verify;
  if (withdrawal_ == Withdrawal::ends || !reading) return false;
  planning_anew_ = true;
  stop_moving();
  return true;
}

void RestoreRun::caller_failed(const std::exception_ptr& error) {
  if (stage_ != Stage::done && (stage_ != Stage::stopping || planning_anew_)) end_with(error);
}

void RestoreRun::end_with(const std::exception_ptr& error) {
  planning_anew_ = false;
  error_ = error;
  deadline_.stop();
  stop_moving();
}

void RestoreRun::stop_moving() {
  if (stage_ != Stage::stopping) enter(Stage::stopping);
  discovery_grace_.stop();
  pace_.stop();
  if (engine_) engine_->stop();
  if (grouped_) grouped_->stop();
  if (quiet()) return stopped();
  // What is on its way into the caller's memory ends by itself, unless a source hangs.
  pace_.start(stopping_grace, [this] { abort_peers(); });
}

// Which boxes did not arrive is part of the answer, whatever ended the restore.
std::exception_ptr RestoreRun::with_gaps(const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    if (!reason.gaps().empty()) return error;
    return std::make_exception_ptr(Error(reason.code(), reason.what(), missing(), reason.ranks()));
  } catch (const std::exception& reason) {
    return std::make_exception_ptr(Error(ErrorCode::internal, reason.what(), missing()));
  }
}

// Not at once: what has stopped is still on the call stack.
void RestoreRun::stopped() {
  if (!planning_anew_) return finish();
  core_.defer([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired() && planning_anew_) guarded([this] { plan_anew(); });
  });
}

bool RestoreRun::withdrawal_only(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    if (reason.code() != ErrorCode::withdrawn || reason.ranks().empty()) return false;
    for (const Peer& peer : peers_) {
      if (peer.layout_rank != reason.ranks().front()) continue;
      if (!refused_by_fabric_) gone_.insert(generation_of(peer.record));
      withdrawn_ = reason;
      return true;
    }
  } catch (const std::exception&) {
  }
  return false;
}

// As if it began here, but for the deadline and what is known to be gone. Every byte is moved again: what has arrived is of
// a generation that is not the others' any more.
void RestoreRun::plan_anew() {
  planning_anew_ = false;
  move_waits_ = false;
  alive_ = std::make_shared<bool>(true);  // answers that are still to come are for nobody
  drop_peers();
  for (std::size_t way = 0; engine_ && way < way_count; ++way) {
    abandoned_bytes_[way] += engine_->tally().way_bytes(static_cast<Way>(way));
  }
  engine_.reset();
  proofs_.clear();
  peers_.clear();
  arrivals_.clear();
  checks_.clear();
  checking_ = 0;
  transfers_.reset();
  predictions_ = {};
  planning_.reset();
  values_.clear();
  asked_.clear();
  grace_over_ = false;
  repetition_ = Repetition(nullptr);
  pace_.stop();
  enter(Stage::plan);
  directory_changed();
}

bool RestoreRun::quiet() const {
  if (digesting_ > 0 || (grouped_ && grouped_->writing())) return false;
  if (zeroing_ > 0 || !engine_) return zeroing_ == 0;
  return fabric_broken_ ? engine_->copies_idle() : engine_->idle();
}

void RestoreRun::fabric_broke(const std::exception_ptr& error) {
  fabric_broken_ = true;  // nobody drives it any more, so nothing of it writes
  if (stage_ != Stage::stopping || planning_anew_) return fail(error);
  if (quiet()) finish();
}

// A link that is cut is not used again: a later restore makes a new one. It stays for what is planned anew, here or by other
// restores that use it (cut_off()), and they go on with other channels: a source may send over any of these.
void RestoreRun::abort_peers() {
  if (stage_ != Stage::stopping) return;
  if (!engine_) return;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (!peer.link || !engine_->writes_from(static_cast<std::uint32_t>(i))) continue;
    for (const ConnectedFabric& one : peer.connected) one.channel->give_up();
    peer.link->cut_channels();
    if (planning_anew_ || peer.link->watchers() > 1) continue;
    peer.link->abort(Error(ErrorCode::cancelled, "a restore that was stopped has cut the connection"));
  }
}

std::vector<Gap> RestoreRun::missing() const {
  std::vector<Gap> gaps;
  if (!engine_) return gaps;
  for (std::size_t i = 0; i < planning_->plan.pieces.size(); ++i) {
    if (engine_->tally().complete(static_cast<std::uint32_t>(i))) continue;
    const Piece& piece = planning_->plan.pieces[i];
    const TensorKey& key = manifest_->tensors[to_index(piece.tensor)].spec.key;
    gaps.push_back({key.fqn, key.state, planning_->plan.box(piece), wanted_.layout_rank()});
  }
  return gaps;
}

void RestoreRun::drop_peers() {
  for (const auto& [link, watcher] : std::exchange(asking_, {})) link->unwatch(watcher);
  for (Peer& peer : peers_) {
    if (peer.link) {
      peer.link->unwatch(peer.watcher);
      // Not awaited: what matters is that the source may free the memory.
      if (peer.lease != 0) peer.link->post(wire::Release{next_request(), peer.lease});
    } else if (peer.lease != 0) {
      core_.publisher().release(peer.lease);
    }
    peer.lease = 0;
  }
}

// What was left out or zeroed depends on what others publish: such a restore is planned anew.
void RestoreRun::keep() {
  if (!planning_ || !transfers_ || !planning_->resolved.skipped.empty() || !planning_->resolved.zeroed.empty()) return;
  auto cached = std::make_unique<CachedRestore>(CachedRestore{.from = options_.from,
                                                              .wanted = wanted_,
                                                              .places = places_,
                                                              .manifest = manifest_,
                                                              .needs_values = needs_values_,
                                                              .planning = std::move(planning_),
                                                              .peers = std::move(peers_),
                                                              .transfers = std::move(transfers_),
                                                              .way = options_.way,
                                                              .predictions = std::move(predictions_),
                                                              .placed = std::move(placed_),
                                                              .staging = std::move(staging_)});
  for (Peer& peer : cached->peers) {
    peer.own = nullptr;
    peer.watcher = 0;
    peer.unanswered = 0;
  }
  core_.restore_cache().keep(std::move(cached));
}

void RestoreRun::take_events_back() {
  for (const auto& events : {lent_events_, done_events_}) {
    if (events) events->take_back();
  }
}

void RestoreRun::finish() {
  drop_peers();
  enter(Stage::done);
  deadline_.stop();
  discovery_grace_.stop();
  pace_.stop();
  progress_.stop();
  proofs_.clear();
  alive_.reset();
  take_events_back();
  report_progress(true);
  RestoreReport report = make_report();
  if (grouped_) grouped_->stop();
  if (!error_) keep();
  state_->finish(std::move(report), error_ ? std::map<TensorKey, Value>{} : std::move(values_), error_);
  core_.finished(*this);
}

void RestoreRun::stop_writing() {
  if (engine_) engine_->stop();
  if (grouped_) grouped_->stop();
  if (stage_ == Stage::done) return;
  if (!error_) error_ = std::make_exception_ptr(Error(ErrorCode::cancelled, "the session was closed", missing()));
  stage_ = Stage::stopping;
  planning_anew_ = false;
  abort_peers();
}

bool RestoreRun::written() const {
  return stage_ == Stage::done || !engine_ || (engine_->idle() && !(grouped_ && grouped_->writing()));
}

void RestoreRun::abandon() {
  if (stage_ == Stage::done) return;
  alive_.reset();
  take_events_back();
  state_->finish(make_report(), {}, error_);
  if (grouped_) grouped_->stop();
  stage_ = Stage::done;
}

bool RestoreRun::payload(const wire::PayloadHeader& header, transport::Incoming& incoming) {
  return engine_ && engine_->payload(header, incoming);
}

}  // namespace shardwire
