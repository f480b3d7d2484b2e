// SPDX-License-Identifier: Apache-2.0
// Sources of an attempt that are lost, silent or slow, and connections that fail.
#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "move/traits.hpp"
#include "restore/attempt.hpp"
#include "restore/holder_search.hpp"
#include "restore/publishers.hpp"
#include "restore/verdict.hpp"

namespace shardwire::restore {

namespace {

bool comes_by_message(Method method) {
  return move::carrier_of(method) == move::Carrier::messages;
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

// --- lost sources ---

void Attempt::on_lost(Source& source, const std::exception_ptr& error) {
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
  const bool readable = is_bound(source.binding()) && !target_.method && BoxLedger::outlives(source, {});
  if (!engine_ && readable) {
    log_loss(context_, error, "its memory is read on");
    return go_on();
  }
  if (engine_) drop(source);
  if (!can_continue()) return;
  log_loss(context_, error,
           connects_again ? "it is connected again" : "what it has not delivered comes from other holders");
  if (engine_) {
    go_on();
    checks_.source_lost();
    return advance();
  }
  stop();  // nothing has moved: all of it is planned again
  reports_.verified();
}

void Attempt::drop(const Source& source) {
  doubtful_.erase(source.index());
  const bool stays_mapped = ledger_.drop(source);
  // Operations under way end only with their channel, those into staging too.
  if (tally()->owed_bytes(static_cast<std::uint32_t>(source.index())) == 0) return;
  for (const ConnectedFabric& one : source.binding().connected) {
    if (!stays_mapped || !one.path.map) one.channel->abort();
  }
}

void Attempt::find_copies() {
  if (!target_.outlives_sources) return;
  add_copies(*planning_, RosterView(context_, target_).publications());
}

// A box that nobody holds any more, and nobody may hold later, ends the restore at once.
bool Attempt::can_continue() {
  if (!lost_.empty()) find_copies();
  const auto gaps = without_holder(planning_->plan, undelivered(), lost_);
  if (gaps.empty() || may_be_held_later()) return true;
  reports_.failed(with_gaps(loss_, gaps));
  return false;
}

// Members that have met in an exchange publish no more for it. A holder that is there, and that no fabric reaches, is no loss to
// wait for: the caller has to hear of it.
bool Attempt::may_be_held_later() const {
  return !target_.exchange_losses && code_in(loss_) == ErrorCode::peer_lost &&
         HolderSearch::may_find(context_, target_, *planning_);
}

std::vector<PieceBox> Attempt::undelivered() const {
  if (!engine_ && lost_.empty() && set_aside_.empty()) return {};
  return ledger_.undelivered();
}

std::vector<LostSource> Attempt::losses() const {
  std::vector<LostSource> reports;
  for (const Loss& one : losses_) reports.push_back(one.report);
  return reports;
}

std::vector<LostSource> Attempt::replaced() const {
  std::vector<LostSource> reports;
  for (const Loss& one : losses_) {
    const Source& source = *sources_[one.source];
    LostSource& report = reports.emplace_back(one.report);
    report.boxes_replanned = ledger_.undelivered(&source).size();
    report.resent_bytes = ledger_.resent_bytes(source);
  }
  return reports;
}

std::vector<PieceBox> Attempt::unproven() {
  for (const auto& source : sources_) {  // this process's own publication tells at once
    if (source->binding().is_own() && source->state() == Source::State::moving) source->confirm(false);
  }
  return ledger_.unproven();
}

// --- connections that fail while their sources live ---

// Once for each source: all that was under way over a connection fails.
void Attempt::path_failed(Source& source, PathLoss loss, const std::string& why) {
  const bool known =
      engine_->dropped(static_cast<std::uint32_t>(source.index())) && !doubtful_.contains(source.index());
  if (!stopped_ && !known) give_up_path(source, loss, why);
  advance();
}

// The source delivers the rest in another attempt, over another connection or the next fabric.
void Attempt::give_up_path(Source& source, PathLoss loss, const std::string& why) {
  if (loss == PathLoss::refused || !target_.outlives_sources) return reports_.path_lost(source, loss, why);
  if (stopped_) return;
  const bool progressed = has_carried(source);
  std::string names;
  for (const std::size_t fabric : drop_connections(source)) {
    failures_.add(source.holder(), fabric, progressed, why);
    names += (names.empty() ? "" : ", ") + context_.fabrics.name(fabric);
  }
  context_.log(LogLevel::warning,
               fmt::format("source rank {}: {}: {}; what it has not delivered moves over another path",
                           to_int(source.rank()), names, why));
}

// Ends the connections that have failed, or all that carry bytes where none has. Returns their fabrics.
std::vector<std::size_t> Attempt::drop_connections(const Source& source) {
  doubtful_.erase(source.index());
  ledger_.drop_connections(source);
  const Binding& binding = source.binding();
  const bool any_failed = !binding.still_connected();
  std::vector<std::size_t> fabrics;
  for (std::size_t i = 0; i < binding.connected.size(); ++i) {
    const ConnectedFabric& one = binding.connected[i];
    const bool carries = !one.path.map && (binding.path.read_by == i || binding.path.sent_by == i);
    if (any_failed ? !one.channel->endpoint->failed() : !carries) continue;
    one.channel->abort();
    fabrics.push_back(one.fabric);
  }
  return fabrics;
}

bool Attempt::has_carried(const Source& source) const {
  const auto peer = static_cast<std::uint32_t>(source.index());
  return std::ranges::any_of(move::method_table, [&](const move::MethodTraits& one) {
    const bool over_connection = one.carrier == move::Carrier::messages || one.carrier == move::Carrier::reads;
    return over_connection && tally()->peer_bytes(peer, one.method) > 0;
  });
}

bool Attempt::may_be_reached(const Source& source) {
  const Binding& binding = source.binding();
  if (!binding.peer_ended || !binding.link || binding.link->broken() || is_bound(binding)) return false;
  for (const auto& [fabric, why] : binding.excluded) {
    if (!binding.failed_fabrics.contains(fabric)) failures_.add(source.holder(), fabric, false, why);
  }
  return true;
}

// --- looks at the sources ---

void Attempt::look_after_sources() {
  if (!engine_ || stopped_ || moved_) return;
  ask_doubtful();
  const auto now = context_.clock.now();
  for (const auto& source : sources_) {
    Arrivals& known = arrivals_[source->index()];
    const ByteCount bytes = tally()->peer_bytes(static_cast<std::uint32_t>(source->index()));
    if (bytes != known.bytes) known = {bytes, now};
  }
  for (const auto& source : sources_) {
    if (stopped_) return;
    if (engine_->dropped(static_cast<std::uint32_t>(source->index()))) continue;
    if (arrivals_[source->index()].last != now) look_at_channel(*source);
  }
  for (const auto& source : sources_) {
    if (stopped_) return;
    if (now - arrivals_[source->index()].last >= keeping_up) look_at_reads(*source);
  }
}

// The endpoint has failed while messages are due. The fabric reports no error for messages that the source never
// started, so the source is asked.
void Attempt::look_at_channel(Source& source) {
  if (!message_channel_failed(source)) return;
  constexpr const char* why = "the connection that its payloads come over has ended";
  if (source.binding().message_channel()->aborted) return messages_ended(source, why);
  source.requests().ask_if_live(callbacks_.wrap([this, &source] {
    if (!stopped_) messages_ended(source, why);
  }));
}

bool Attempt::message_channel_failed(const Source& source) const {
  const Binding& binding = source.binding();
  const FabricChannel* const channel = binding.message_channel();
  if (binding.is_own() || channel == nullptr || !channel->endpoint->failed()) return false;
  const auto peer = static_cast<std::uint32_t>(source.index());
  ByteCount expected = 0;
  for (const move::Transfer& transfer : transfers()) {
    if (transfer.peer == peer && comes_by_message(transfer.method)) expected += move::bytes_of(transfer);
  }
  ByteCount got = 0;
  for (const move::MethodTraits& one : move::method_table) {
    if (comes_by_message(one.method)) got += tally()->peer_bytes(peer, one.method);
  }
  return got < expected;
}

// Hardware may report a refused access late, or never.
void Attempt::look_at_reads(Source& source) {
  const Binding& binding = source.binding();
  if (!binding.path.read_by || !engine_->writes_from(static_cast<std::uint32_t>(source.index()))) return;
  const auto published = context_.directory.publication(target_.options.name, binding.record.member);
  if (!published || *published != binding.record) source.requests().ask_if_live([] {});
}

// Again and again: another answer may be due, which tells nothing of this.
void Attempt::ask_doubtful() {
  for (const auto& [index, why] : std::map(doubtful_)) {
    Source& source = *sources_[index];
    source.requests().ask_if_live(
        callbacks_.wrap([this, &source, why = why] { path_failed(source, PathLoss::ended, why); }));
  }
}

void Attempt::messages_ended(Source& source, const std::string& why) {
  const FabricChannel* const channel = source.binding().message_channel();
  const bool aborted = channel != nullptr && channel->aborted;
  path_failed(source, aborted ? PathLoss::aborted : PathLoss::ended, why);
}

Sample Attempt::sample_of(const Source& source) const {
  using State = Source::State;
  if (source.binding().is_own()) return {.nothing_more = true};
  const auto peer = static_cast<std::uint32_t>(source.index());
  const ByteCount arrived = engine_ ? tally()->peer_bytes(peer) : 0;
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
  const ByteCount owed = tally()->owed_bytes(peer);
  return {.arrived_bytes = arrived,
          .owed_bytes = owed,
          .due = owed > 0 || source.requests().unanswered() > 0,
          .under_way = engine_->asks(peer) && answers(source),  // else on_silent() decides
          .patience = failures_.patience(source.holder(), 2 * target_.options.notice)};
}

std::vector<Sample> Attempt::samples() const {
  std::vector<Sample> samples;
  for (const auto& source : sources_) samples.push_back(sample_of(*source));
  return samples;
}

// Samples are taken anew for each rule, since what the one before has found may end the movement of a source.
void Attempt::look(Clock::Time now, bool overslept) {
  const bool moves = engine_ != nullptr;  // since an earlier look
  const Silence::Found found = silence_.look(samples(), now, overslept);
  if (!found.silent.empty()) on_silent(found);
  if (!moves) return;
  const auto is_over = [this] { return stopped_ || moved_; };
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

bool Attempt::answers(const Source& source) const {
  const auto heard = source.heard(target_.options.notice / 2);
  return heard && context_.clock.now() - *heard < target_.options.notice;
}

// A silent source is given up for another one that holds the same; it may be silent too. Nobody knows whether the only holder
// of something is dead: the restore waits for it until its deadline.
void Attempt::on_silent(const Silence::Found& found) {
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
    const auto owed = ledger_.owed_by(*source);
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

// Other holders that answer are chosen before this one from now on.
void Attempt::on_standstill(Source& source, Duration lasted) {
  failures_.stood_still(source.holder());
  if (!is_in(slow_, source.holder())) slow_.push_back(source.holder());
  give_up_path(
      source, PathLoss::ended,
      fmt::format("nothing has come over the connection for {:.1f} s, though the source answers", seconds_of(lasted)));
  advance();
}

// Holders that owe nothing move what waits for a slow one. It keeps what is under way, and is not chosen again.
void Attempt::on_slow(std::span<const std::size_t> slow, std::span<const Sample> samples) {
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
    if (!without_holder(planning_->plan, ledger_.owed_by(source), busy).empty()) continue;
    const auto parts = engine_->take_waiting(static_cast<std::uint32_t>(index));
    if (parts.empty()) continue;
    ledger_.note_returned(parts);
    ByteCount bytes = 0;
    for (const move::TransferPart& part : parts) bytes += part.bytes();
    slow_.push_back(source.holder());
    context_.log(LogLevel::info,
                 fmt::format("source rank {} is slow: {} bytes that wait for it come from other holders",
                             to_int(source.rank()), bytes));
  }
  advance();
}

}  // namespace shardwire::restore
