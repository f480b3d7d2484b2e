// SPDX-License-Identifier: Apache-2.0
#include "restore/run.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "move/traits.hpp"
#include "restore/cached_restore.hpp"
#include "restore/holder_search.hpp"
#include "restore/publishers.hpp"
#include "restore/verdict.hpp"

namespace shardwire::restore {

namespace {

// One unbound binding per source, or the bindings of the earlier restore of the same plan.
std::vector<Binding> bindings_for(const Planning& planning, const Target& target, CachedRestore* earlier,
                                  const PathFailures& failures) {
  if (earlier == nullptr) {
    std::vector<Binding> bindings = name_sources(planning, *target.wanted.manifest, target.places);
    for (Binding& one : bindings) one.failed_fabrics = failures.failed_fabrics(one.holder);
    return bindings;
  }
  std::vector<Binding> bindings = std::move(earlier->bindings);
  name_sources_again(planning, *target.wanted.manifest, target.places, bindings);
  return bindings;
}

Source::Options source_options(const Target& target) {
  const auto method = target.method;
  return {.from = target.options.name,
          .fabrics = {.deadline = target.deadline,
                      .patience = 2 * target.options.notice,  // a connection that stands still
                      .wants_messages = method && move::carrier_of(*method) == move::Carrier::messages}};
}

void log_plan(const Context& context, const Target& target, const std::vector<move::Transfer>& transfers,
              std::size_t sources) {
  ByteCount bytes = 0;
  for (const move::Transfer& transfer : transfers) bytes += move::bytes_of(transfer);
  context.log(LogLevel::info,
              fmt::format("restore of '{}' as layout rank {}: {} pieces, {} bytes from {} sources", target.options.name,
                          to_int(target.catalog().layout_rank()), transfers.size(), bytes, sources));
}

// The path to a source: its fabrics and methods, and why nothing is mapped if nothing is.
std::string path_text(const Binding& binding, const std::map<Method, ByteCount>& methods) {
  std::string moved;
  for (const auto& [method, bytes] : methods) {
    moved += fmt::format("{}{} bytes {}", moved.empty() ? "" : ", ", bytes, to_string(method));
  }
  std::string carriers = binding.is_own() ? "this process" : "";
  for (const ConnectedFabric& one : binding.connected) {
    carriers += fmt::format("{}{}", carriers.empty() ? "" : ", ", one.path.carrier);
  }
  const std::string rejected = to_text(binding.path.rejected);
  return fmt::format("path to source rank {}, member {}: {}: {}{}{}", to_int(binding.layout_rank),
                     binding.record.member, carriers, moved, rejected.empty() ? "" : "; ", rejected);
}

void log_paths(const Context& context, const std::vector<const Binding*>& bindings,
               const std::vector<move::Transfer>& transfers) {
  std::vector<std::map<Method, ByteCount>> methods(bindings.size());
  for (const move::Transfer& transfer : transfers) {
    methods[transfer.peer][transfer.method] += move::bytes_of(transfer);
  }
  for (std::size_t i = 0; i < bindings.size(); ++i) context.log(LogLevel::info, path_text(*bindings[i], methods[i]));
}

bool is_bound(const Binding& binding) {
  return binding.generation == binding.record.generation;
}

void log_loss(const Context& context, const std::exception_ptr& error, std::string_view outcome) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& reason) {
    context.log(LogLevel::warning, fmt::format("{}; {}", reason.what(), outcome));
  }
}

LostSource loss_of(Rank rank, const std::exception_ptr& error, double after_seconds) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    return {rank, reason.code(), reason.what(), after_seconds};
  } catch (const std::exception& reason) {
    return {rank, ErrorCode::internal, reason.what(), after_seconds};
  }
}

}  // namespace

Run::Run(const Context& context, Reports reports, Target& target, DestinationEvents& events, PathFailures& failures,
         RoundsShare* rounds, std::shared_ptr<Planning> planning, Earlier earlier)
    : context_(context),
      reports_(std::move(reports)),
      target_(target),
      events_(events),
      failures_(failures),
      rounds_(rounds),
      callbacks_(reports_.failed),
      planning_(std::move(planning)),
      earlier_(std::move(earlier)),
      sources_(make_sources(context, *this, paths(), source_options(target),
                            bindings_for(*planning_, target, earlier_.restore.get(), failures))),
      look_(context.clock, target.options.notice,
            [this](Clock::Time now, bool overslept) { callbacks_.run([&] { look(now, overslept); }); }),
      silence_(sources_, target.options.notice, look_.interval()),
      slow_sources_(target.options.notice),
      lost_(std::move(earlier_.lost)),
      slow_(failures.standing()) {
  if (planning_->others.ranks().empty()) return;
  replicas_ = std::make_unique<ReplicaChecks>(
      context, ReplicaChecks::Reports{reports_.failed, reports_.source_ended, reports_.quieter}, target, paths(),
      *planning_);
}

// --- bind ---

void Run::start() {
  Source::Leasing leasing = Source::Leasing::first;
  if (earlier_.restore && !target_.options.bind_only && rounds_ == nullptr) {
    leasing =
        leasing_of(*earlier_.restore, bindings_of(sources_), target_.options.verify, target_.method, target_.catalog());
  }
  if (replicas_) replicas_->start();
  if (target_.outlives_sources && !stopped_) {
    silence_.begin(context_.clock.now());
    look_.start();
  }
  for (const auto& source : sources_) {
    if (!stopped_) source->start(leasing);
  }
  await(Awaited::bound);
}

// A source may report within the call that starts or confirms it: the next step follows the last of these calls.
void Run::await(Awaited what) {
  awaited_ = what;
  go_on();
}

// A lost source without which the run cannot continue has stopped it.
void Run::go_on() {
  const auto state = awaited_ == Awaited::bound ? Source::State::bound : Source::State::released;
  if (stopped_ || awaited_ == Awaited::nothing || !have_reached(sources_, state)) return;
  if (std::exchange(awaited_, Awaited::nothing) == Awaited::bound) return on_all_bound();
  reports_.verified();
}

void Run::on_all_bound() {
  callbacks_.run([this] {
    CachedRestore* const earlier = earlier_.restore.get();
    // All members vote each time bytes may come in rounds.
    if (rounds_ == nullptr && earlier != nullptr && std::ranges::none_of(sources_, &Source::bound_anew) &&
        keeps_transfers(*earlier, target_.method, target_.catalog())) {
      chosen_ = std::move(earlier->chosen);
      return begin();
    }
    BoundTransfers bound = make_transfers(*planning_, bindings_of(sources_), target_.destination(), paths());
    if (rounds_ == nullptr) return choose(std::move(bound));
    rounds_->ask(std::move(bound), bindings_of(sources_),
                 callbacks_.wrap([this](BoundTransfers asked) { choose(std::move(asked)); }));
  });
}

void Run::choose(BoundTransfers bound) {
  const std::vector<const Binding*> bindings = bindings_of(sources_);
  chosen_.predictions = choose_methods(bound, bindings, *planning_, target_.destination(), context_.costs,
                                       target_.method, rounds_ != nullptr ? &rounds_->group() : nullptr);
  chosen_.transfers = std::move(bound.transfers);
  chosen_.staged_local = std::move(bound.staged_local);
  log_paths(context_, bindings, *chosen_.transfers);
  begin();
}

void Run::begin() {
  log_plan(context_, target_, *chosen_.transfers, sources_.size());
  if (target_.options.bind_only) {
    reports_.stage(Stage::verify);
    return replicas_ ? replicas_->when_leased([this] { confirm(); }) : confirm();
  }
  events_.when_ready(callbacks_.wrap([this] {
    if (!stopped_) move();
  }));
}

// --- move, verify ---

void Run::move() {
  reports_.stage(Stage::move);
  Movement::Reports reports{
      .moved = [this] { on_moved(); },
      .undelivered = [this] { (void)can_continue(); },
      .path_lost = [this](Source& source, PathLoss loss, const std::string& why) { on_path_lost(source, loss, why); },
      .failed = reports_.failed,
      .quieter = reports_.quieter};
  movement_ = std::make_unique<Movement>(context_, std::move(reports), target_, *planning_, sources_,
                                         *chosen_.transfers, rounds_, take_staging());
  movement_->start(chosen_.transfers);
  if (!target_.outlives_sources || stopped_) return;
  standstill_.begin(sources_.size(), context_.clock.now());
  slow_sources_.begin(samples(), context_.clock.now());
  look_.start();
}

// Compares digests only now: a digest taken after the last read detects a source that changes its memory after a part
// was read.
void Run::on_moved() {
  reports_.stage(Stage::verify);
  movement_->compare_digests([this] { replicas_ ? replicas_->compare([this] { confirm(); }) : confirm(); });
}

// A source looks at the lease, or at the generation that is read without one, before it sends a message
// (ServedRequest::check_readable()), and keeps the memory in use until the message is sent or the endpoint is gone. A message
// whose bytes were copied in that time (transport::Incoming::is_copied()) thus has bytes of the generation that was bound:
//
//   zcopy over tcp                   proven: copied from the publication while it is in use
//   packed over tcp                  proven: packed while the publication is in use, copied before the slot is used again
//   zcopy, packed over ucx           not proven: the bytes may be fetched once the source has given this reader up, when its
//                                    memory is the caller's again, or the slot is packed for another reader
//   mapped, read, sieved_read        not proven: the source does not know when they are read
//   collective                       not proven: rounds look at no lease
void Run::confirm() {
  const auto is_proven = [this](const Source& source) {
    return movement_ && movement_->messages_are_copied() && all_in_messages(*chosen_.transfers, source.index());
  };
  for (const auto& source : sources_) {
    if (!stopped_) source->confirm(is_proven(*source));
  }
  await(Awaited::confirmed);
}

// --- lost sources ---

void Run::on_lost(Source& source, const std::exception_ptr& error) {
  const bool outlived = target_.outlives_sources && source.state() == Source::State::lost;
  if (outlived && stopped_) return;
  const bool connects_again = outlived && may_be_reached(source);
  if (source.state() == Source::State::lost && !stopped_ && !connects_again) {
    losses_.push_back({source.index(), loss_of(source.rank(), error, target_.seconds_at(context_.clock.now()))});
  }
  if (!outlived) return reports_.source_ended(source, error);
  if (connects_again) {
    slow_.push_back(source.holder());
    set_aside_.push_back(source.holder());
  }
  if (!is_in(set_aside_, source.holder())) lost_.push_back(source.holder());
  if (!loss_) loss_ = error;
  // The source's binding may be that of an earlier restore, which serves unless the caller forces a method.
  const bool readable = is_bound(source.binding()) && !target_.method && Movement::outlives(source, {});
  if (!movement_ && readable) {
    log_loss(context_, error, "its memory is read on");
    return go_on();
  }
  if (movement_) movement_->lose(source);
  if (!can_continue()) return;
  log_loss(context_, error,
           connects_again ? "it is connected again" : "what it has not delivered comes from other holders");
  if (movement_) {
    go_on();
    return movement_->continue_without(source);
  }
  stop();  // nothing has moved: all of it is planned again
  reports_.verified();
}

// The source delivers the rest in another run, over another connection or the next fabric.
void Run::on_path_lost(Source& source, PathLoss loss, const std::string& why) {
  if (loss == PathLoss::refused || !target_.outlives_sources) return reports_.path_lost(source, loss, why);
  if (stopped_) return;
  const bool progressed = movement_->has_carried(source);
  std::string names;
  for (const std::size_t fabric : movement_->lose_path(source)) {
    failures_.add(source.holder(), fabric, progressed, why);
    names += (names.empty() ? "" : ", ") + context_.fabrics.name(fabric);
  }
  context_.log(LogLevel::warning,
               fmt::format("source rank {}: {}: {}; what it has not delivered moves over another path",
                           to_int(source.rank()), names, why));
}

bool Run::may_be_reached(const Source& source) {
  const Binding& binding = source.binding();
  if (!binding.peer_ended || !binding.link || binding.link->broken() || is_bound(binding)) return false;
  for (const auto& [fabric, why] : binding.excluded) {
    if (!binding.failed_fabrics.contains(fabric)) failures_.add(source.holder(), fabric, false, why);
  }
  return true;
}

// A silent source is given up for another one that holds the same; it may be silent too. Nobody knows whether the only holder
// of something is dead: the restore waits for it until its deadline.
void Run::on_silent(const Silence::Found& found) {
  find_copies();
  const auto note = [this](const Source* source) {
    if (!is_in(silent_, source->holder())) silent_.push_back(source->holder());
  };
  std::ranges::for_each(found.doubtful, note);
  std::vector<Source*> replaceable;
  for (Source* const source : found.silent) {
    note(source);
    std::vector<Rank> without = lost_;
    without.push_back(source->holder());
    const auto owed = movement_ ? movement_->owed_by(*source) : scheduled_of(source->holder());
    if (!without_holder(planning_->plan, owed, without).empty()) continue;
    set_aside_.push_back(source->holder());
    replaceable.push_back(source);
  }
  const double seconds = seconds_of(target_.options.notice);
  for (Source* const source : replaceable) {
    source->lose(Error(ErrorCode::peer_lost,
                       fmt::format("source rank {}: nothing was heard for {:.1f} s", to_int(source->rank()), seconds),
                       std::vector<Rank>{source->rank()}));
  }
}

void Run::find_copies() {
  if (!target_.outlives_sources) return;
  add_copies(*planning_, RosterView(context_, target_).publications());
}

// A box that nobody holds any more, and nobody may hold later, ends the restore at once.
bool Run::can_continue() {
  if (!lost_.empty()) find_copies();
  const auto gaps = without_holder(planning_->plan, undelivered(), lost_);
  if (gaps.empty() || may_be_held_later()) return true;
  reports_.failed(with_gaps(loss_, gaps));
  return false;
}

// Members that have met in an exchange publish no more for it. A holder that is there, and that no fabric reaches, is no loss to
// wait for: the caller has to hear of it.
bool Run::may_be_held_later() const {
  return !target_.exchange_losses && code_in(loss_) == ErrorCode::peer_lost &&
         HolderSearch::may_find(context_, target_, *planning_);
}

std::vector<PieceBox> Run::undelivered() const {
  if (movement_) return movement_->undelivered();
  if (lost_.empty() && set_aside_.empty()) return {};
  return scheduled_of(std::nullopt);
}

std::vector<LostSource> Run::losses() const {
  std::vector<LostSource> reports;
  for (const Loss& one : losses_) reports.push_back(one.report);
  return reports;
}

std::vector<LostSource> Run::replaced() const {
  std::vector<LostSource> reports;
  for (const Loss& one : losses_) {
    const Source& source = *sources_[one.source];
    LostSource& report = reports.emplace_back(one.report);
    if (movement_) {
      report.boxes_replanned = movement_->undelivered(&source).size();
      report.resent_bytes = movement_->resent_bytes(source);
    } else {
      report.boxes_replanned = scheduled_of(source.holder()).size();
    }
  }
  return reports;
}

std::vector<PieceBox> Run::unproven() {
  if (!movement_) return scheduled_of(std::nullopt);
  for (const auto& source : sources_) {  // this process's own publication tells at once
    if (source->binding().is_own() && source->state() == Source::State::moving) source->confirm(false);
  }
  return movement_->unproven();
}

std::vector<PieceBox> Run::scheduled_of(std::optional<Rank> holder) const {
  std::vector<PieceBox> boxes;
  for (const ScheduledPiece& item : planning_->schedule.items) {
    if (!holder || item.source == *holder) boxes.push_back({item.piece, planning_->schedule.box(item)});
  }
  return boxes;
}

// --- looks at the sources ---

Sample Run::sample_of(const Source& source) const {
  using State = Source::State;
  if (source.binding().is_own()) return {.nothing_more = true};
  const auto peer = static_cast<std::uint32_t>(source.index());
  const ByteCount arrived = movement_ ? movement_->tally().peer_bytes(peer) : 0;
  switch (source.state()) {
    case State::resolving:
    case State::leasing:
    case State::connecting:
    case State::proving:
    case State::confirming: return {.due = true};
    case State::bound: return {.due = source.requests().unanswered() > 0};
    case State::moving: break;
    case State::released:
    case State::lost:
    case State::withdrawn: return {.arrived_bytes = arrived, .nothing_more = true};
  }
  const ByteCount owed = movement_->tally().owed_bytes(peer);
  return {.arrived_bytes = arrived,
          .owed_bytes = owed,
          .due = owed > 0 || source.requests().unanswered() > 0,
          .under_way = movement_->asks(source) && answers(source),  // else on_silent() decides
          .patience = failures_.patience(source.holder(), 2 * target_.options.notice)};
}

std::vector<Sample> Run::samples() const {
  std::vector<Sample> samples;
  for (const auto& source : sources_) samples.push_back(sample_of(*source));
  return samples;
}

// Samples are taken anew for each rule, since what the one before has found may end the movement of a source.
void Run::look(Clock::Time now, bool overslept) {
  const bool moves = movement_ != nullptr;  // since an earlier look
  const Silence::Found found = silence_.look(samples(), now, overslept);
  if (!found.silent.empty()) on_silent(found);
  if (!moves) return;
  const auto is_over = [this] { return stopped_ || movement_->moved(); };
  for (const auto& source : sources_) {
    if (is_over()) return;
    const auto lasted = standstill_.look(source->index(), sample_of(*source), now, overslept);
    if (lasted) on_standstill(*source, *lasted);
  }
  // Otherwise a tensor has one holder, from its first byte to the last.
  if (is_over() || target_.options.replicas != Replicas::spread) return;
  const std::vector<Sample> last = samples();
  if (const auto slow = slow_sources_.look(last, now, overslept); !slow.empty()) on_slow(slow, last);
}

bool Run::answers(const Source& source) const {
  const auto heard = source.heard(target_.options.notice / 2);
  return heard && context_.clock.now() - *heard < target_.options.notice;
}

// Other holders that answer are chosen before this one from now on.
void Run::on_standstill(Source& source, Duration lasted) {
  failures_.stood_still(source.holder());
  if (!is_in(slow_, source.holder())) slow_.push_back(source.holder());
  on_path_lost(
      source, PathLoss::ended,
      fmt::format("nothing has come over the connection for {:.1f} s, though the source answers", seconds_of(lasted)));
  movement_->advance();
}

// Holders that owe nothing move what waits for a slow one. It keeps what is under way, and is not chosen again.
void Run::on_slow(std::span<const std::size_t> slow, std::span<const Sample> samples) {
  find_copies();
  std::vector<Rank> busy = lost_;
  busy.insert(busy.end(), silent_.begin(), silent_.end());
  busy.insert(busy.end(), slow_.begin(), slow_.end());
  for (const auto& source : sources_) {
    if (samples[source->index()].owed_bytes > 0) busy.push_back(source->holder());
  }
  for (const std::size_t index : slow) {
    const Source& source = *sources_[index];
    if (is_in(silent_, source.holder()) || is_in(slow_, source.holder())) continue;
    if (!without_holder(planning_->plan, movement_->owed_by(source), busy).empty()) continue;
    const ByteCount bytes = movement_->take_waiting(source);
    if (bytes == 0) continue;
    slow_.push_back(source.holder());
    context_.log(LogLevel::info,
                 fmt::format("source rank {} is slow: {} bytes that wait for it come from other holders",
                             to_int(source.rank()), bytes));
  }
  movement_->advance();
}

// --- the end ---

void Run::stop() {
  stopped_ = true;
  look_.stop();
  if (replicas_) replicas_->stop();
  if (movement_) movement_->stop();
}

void Run::release() {
  for (const auto& source : sources_) source->release();
  if (replicas_) replicas_->release();
  callbacks_.end();
}

std::shared_ptr<move::StagingPool> Run::take_staging() {
  if (movement_) return movement_->take_staging();
  if (earlier_.restore && earlier_.restore->staging) return std::move(earlier_.restore->staging);
  return std::move(earlier_.staging);
}

// Skipped and zeroed tensors depend on other members' publications: such a restore is not cached.
bool Run::keep_in(CachedRestore& cached) {
  const ResolvedValues& resolved = planning_->resolved;
  if (!chosen_.transfers || !resolved.skipped.empty() || !resolved.zeroed.empty()) return false;
  cached.staging = take_staging();
  cached.planning = std::move(planning_);
  for (const auto& source : sources_) cached.bindings.push_back(source->take_binding());
  cached.chosen = std::move(chosen_);
  return true;
}

// --- queries ---

PathInputs Run::paths() {
  return {context_.fabrics, target_.reach, rounds_ != nullptr ? &rounds_->group() : nullptr};
}

double Run::digest_seconds() const {
  return (movement_ ? movement_->digest_seconds() : 0) + (replicas_ ? replicas_->digest_seconds() : 0);
}

Error Run::late() const {
  if (!awaits_events()) return late_source(progress());
  return {ErrorCode::timed_out,
          "the deadline passed: events of the destination's own views had not happened, and nothing is written before",
          std::vector<Rank>{target_.catalog().layout_rank()}};
}

std::string Run::awaited() const {
  return awaits_events() ? "events of the destination's own views" : awaited_text(progress());
}

std::uint64_t Run::answers() const {
  std::uint64_t all = 0;
  for (const auto& source : sources_) all += source->requests().answered();
  if (!replicas_) return all;
  for (const auto& holder : replicas_->sources()) all += holder->requests().answered();
  return all;
}

bool Run::awaits_events() const {
  const bool reads = movement_ || (replicas_ && replicas_->comparing());
  return !reads && chosen_.transfers && !events_.is_ready();
}

std::vector<SourceProgress> Run::progress() const {
  if (replicas_ && replicas_->comparing()) return replicas_->progress();
  if (movement_) return movement_->progress();
  std::vector<SourceProgress> progress = progress_of(sources_, context_);
  if (replicas_) std::ranges::copy(replicas_->progress(), std::back_inserter(progress));
  return progress;
}

}  // namespace shardwire::restore
