// SPDX-License-Identifier: Apache-2.0
#include "session/restore_run.hpp"

#include <fmt/ranges.h>

#include <cstring>
#include "support/list_of.hpp"

namespace shardwire {

namespace {

const char* name_of(int stage) {
  constexpr const char* names[] = {"plan", "bind", "move", "verify", "commit", "stopping", "done"};
  return names[stage];
}

// Time for bytes that are on their way when a restore is stopped.
constexpr auto stopping_grace = std::chrono::milliseconds(500);

// Of bytes that came in messages.
const char* how_sent(ByteCount straight, ByteCount staged) {
  if (straight == 0) return "; through staging";
  return staged == 0 ? "; straight from where it lies" : "; long runs straight from where they lie";
}

}  // namespace

// Far from overflow.
std::uint64_t RestoreRun::random_request() {
  const wire::Nonce nonce = wire::random_nonce();
  std::uint64_t value = 0;
  std::memcpy(&value, nonce.data(), sizeof value);
  return (value >> 1) | 1;
}

RestoreRun::RestoreRun(Core& core, std::shared_ptr<detail::RestoreState> state, Catalog wanted, RestoreOptions options,
                       Clock::time_point began, double join_seconds)
    : core_(core),
      state_(std::move(state)),
      catalog_(std::make_shared<const Catalog>(std::move(wanted))),
      wanted_(*catalog_),
      options_(std::move(options)),
      began_(began),
      stage_began_(began),
      deadline_(core.loop()),
      settle_(core.loop()),
      pace_(core.loop()),
      progress_(core.loop()),
      needs_values_(!wanted_.values().empty()),
      next_request_(random_request()),
      kept_(core.take_kept(options_.from, wanted_)) {
  manifest_ = kept_ ? kept_->manifest : manifest_of(wanted_);
  if (kept_) needs_values_ = kept_->needs_values;
  seconds_.join = join_seconds;
}

RestoreRun::~RestoreRun() = default;

void RestoreRun::start() {
  deadline_.start(options_.deadline - (Clock::now() - began_), [this] {
    if (stage_ == Stage::plan && !last_gaps_.empty()) {
      return guarded([this] { require_complete(last_gaps_, last_absent_); });
    }
    fail(std::make_exception_ptr(
        Error(ErrorCode::timed_out,
              fmt::format("the deadline passed in stage {}; {}", name_of(static_cast<int>(stage_)), waiting_for()))));
  });
  arm_progress();
  directory_changed();
}

void RestoreRun::directory_changed() {
  if (stage_ != Stage::plan) return;
  guarded([this] {
    if (!manifest_->tensors.empty() || !wanted_.values().empty()) core_.watch(options_.from);
    consider();
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
    report_progress(false);
    arm_progress();
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
  callback(progress);
}

std::string RestoreRun::waiting_for() const {
  if (stage_ == Stage::plan) {
    const auto records = sources();
    if (records.empty()) return fmt::format("nobody has published '{}'", options_.from);
    return fmt::format("{} members have published '{}'", records.size(), options_.from);
  }
  std::vector<int> places;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    ByteCount expected = 0;
    if (transfers_)
      for (const move::Transfer& transfer : *transfers_) {
        if (transfer.peer == i) expected += move::bytes_of(transfer);
      }
    ByteCount arrived = 0;
    if (engine_) {
      for (std::size_t way = 0; way < way_count; ++way) {
        arrived += engine_->tally().peer_bytes(static_cast<std::uint32_t>(i), static_cast<Way>(way));
      }
    }
    if (!engine_ || arrived < expected) places.push_back(to_int(peers_[i].place));
  }
  return places.empty() ? std::string("all bytes are in place")
                        : fmt::format("source ranks {} had more to give", support::list_of(places));
}

// --- the end ---

void RestoreRun::fail(const std::exception_ptr& error) {
  if (stage_ == Stage::stopping || stage_ == Stage::done) return;
  // Which boxes did not arrive is part of the answer, whatever ended the restore.
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    error_ = reason.gaps().empty()
                 ? std::make_exception_ptr(Error(reason.code(), reason.what(), missing(), reason.ranks()))
                 : error;
  } catch (const std::exception& reason) {
    error_ = std::make_exception_ptr(Error(ErrorCode::internal, reason.what(), missing()));
  }
  enter(Stage::stopping);
  deadline_.stop();
  settle_.stop();
  pace_.stop();
  if (engine_) engine_->stop();
  if (quiet()) return finish();
  // What is on its way into the caller's memory ends by itself, unless a source hangs.
  pace_.start(stopping_grace, [this] { cut_peers(); });
}

bool RestoreRun::quiet() const {
  if (zeroing_ > 0 || !engine_) return zeroing_ == 0;
  return fabric_broken_ ? engine_->copies_idle() : engine_->idle();
}

void RestoreRun::fabric_broke(const std::exception_ptr& error) {
  fabric_broken_ = true;  // nobody drives it any more, so nothing of it writes
  if (stage_ != Stage::stopping) return fail(error);
  if (quiet()) finish();
}

// A link that is cut is not used again: a later restore makes a new one.
void RestoreRun::cut_peers() {
  if (stage_ != Stage::stopping) return;
  if (!engine_) return;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (peer.link && engine_->writes_from(static_cast<std::uint32_t>(i)))
      peer.link->cut(Error(ErrorCode::cancelled, "a restore that was stopped has cut the connection"));
  }
}

std::vector<Gap> RestoreRun::missing() const {
  std::vector<Gap> gaps;
  if (!engine_) return gaps;
  for (std::size_t i = 0; i < planning_->plan.pieces.size(); ++i) {
    if (engine_->tally().complete(static_cast<std::uint32_t>(i))) continue;
    const Piece& piece = planning_->plan.pieces[i];
    const TensorKey& key = manifest_->tensors[to_index(piece.tensor)].spec.key;
    gaps.push_back({key.fqn, key.state, planning_->plan.box(piece), wanted_.place()});
  }
  return gaps;
}

void RestoreRun::drop_peers() {
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
  if (!planning_ || !transfers_ || !planning_->findings.skipped.empty() || !planning_->findings.zeroed.empty()) return;
  auto kept = std::make_unique<KeptRestore>(KeptRestore{.from = options_.from,
                                                        .wanted = wanted_,
                                                        .manifest = manifest_,
                                                        .needs_values = needs_values_,
                                                        .planning = std::move(planning_),
                                                        .peers = std::move(peers_),
                                                        .transfers = std::move(transfers_),
                                                        .way = options_.way,
                                                        .predictions = std::move(predictions_),
                                                        .placed = std::move(placed_),
                                                        .staging = std::move(staging_)});
  for (Peer& peer : kept->peers) {
    peer.own = nullptr;
    peer.watcher = 0;
  }
  core_.keep(std::move(kept));
}

void RestoreRun::finish() {
  drop_peers();
  enter(Stage::done);
  deadline_.stop();
  settle_.stop();
  pace_.stop();
  progress_.stop();
  alive_.reset();
  report_progress(true);
  RestoreReport report = make_report();
  if (!error_) keep();
  state_->finish(std::move(report), error_ ? std::map<TensorKey, Value>{} : std::move(values_), error_);
  core_.finished(*this);
}

void RestoreRun::stop_writing() {
  if (engine_) engine_->stop();
  if (stage_ == Stage::done) return;
  if (!error_) error_ = std::make_exception_ptr(Error(ErrorCode::cancelled, "the session was closed", missing()));
  stage_ = Stage::stopping;
  cut_peers();
}

bool RestoreRun::written() const {
  return stage_ == Stage::done || !engine_ || engine_->idle();
}

void RestoreRun::abandon() {
  if (stage_ == Stage::done) return;
  alive_.reset();
  state_->finish(make_report(), {}, error_);
  stage_ = Stage::done;
}

bool RestoreRun::payload(const wire::PayloadHeader& header, transport::Incoming& incoming) {
  const auto asked = engine_ ? engine_->asked(header.request) : std::nullopt;
  if (!asked) return false;
  if (asked->last) peers_[asked->peer].link->forget(header.request);
  return engine_->payload(header, incoming);
}

RestoreReport RestoreRun::make_report() const {
  RestoreReport report;
  report.seconds = seconds_;
  report.seconds.wall = seconds_.join + std::chrono::duration<double>(stage_began_ - began_).count();
  report.transport = core_.fabric().version();
  const auto registration = core_.arenas().registration();
  report.registered_bytes = registration.bytes;
  report.registration_seconds = registration.seconds;
  report.staging_budget = options_.staging_bytes + core_.publisher().staging_budget_bytes();
  report.staging_peak = core_.publisher().staging_peak_bytes();
  if (planning_ && !error_) {
    report.skipped = planning_->findings.skipped;
    for (const TensorId id : planning_->findings.zeroed) {
      report.zeroed.push_back(manifest_->tensors[to_index(id)].spec.key);
    }
  }
  if (!engine_) return report;
  const move::Tally& tally = engine_->tally();
  report.staging_peak += engine_->staging_peak_bytes();
  report.needed = tally.expected_bytes();
  report.ways.local = tally.way_bytes(Way::local);
  report.ways.mapped = tally.way_bytes(Way::mapped);
  report.ways.read = tally.way_bytes(Way::read);
  report.ways.over_read = tally.way_bytes(Way::over_read);
  report.ways.straight = tally.way_bytes(Way::straight);
  report.ways.packed = tally.way_bytes(Way::packed) + report.ways.straight;
  report.local = report.ways.local;
  report.extra = tally.extra_bytes();
  report.moved = tally.done_bytes() + report.extra - report.local;
  report.digest_seconds = engine_->digest_seconds();
  for (std::size_t i = 0; i < way_count; ++i) {
    const move::Prediction& predicted = predictions_.ways[i];
    const Way way = static_cast<Way>(i);
    if (predicted.bytes == 0) continue;
    report.costs.push_back({way, predicted.bytes, predicted.runs, predicted.seconds, tally.way_seconds(way)});
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const auto peer = static_cast<std::uint32_t>(i);
    const auto add = [&](ByteCount bytes, std::string_view path, const std::string& detail) {
      if (bytes > 0) report.peers.push_back({peers_[i].place, bytes, std::string(path), detail});
    };
    const auto over = [&](Way way) { return fmt::format("{}/{}", core_.fabric().name(), to_string(way)); };
    const std::string& protocol = peers_[i].protocol;
    add(tally.peer_bytes(peer, Way::local), "local", "this process");
    for (const Way way : {Way::mapped, Way::read, Way::over_read})
      add(tally.peer_bytes(peer, way), over(way), protocol);
    const ByteCount straight = tally.peer_bytes(peer, Way::straight);
    const ByteCount staged = tally.peer_bytes(peer, Way::packed);
    add(straight + staged, over(Way::packed),
        protocol + how_sent(straight, staged) + peers_[i].no_map_reason + peers_[i].no_map_cost);
  }
  return report;
}

}  // namespace shardwire
