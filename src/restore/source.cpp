// SPDX-License-Identifier: Apache-2.0
#include "restore/source.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace shardwire::restore {

namespace {

constexpr std::string_view span_prefix = "shardwire.source.";

std::string_view span_name_of(Source::State state) {
  switch (state) {
    case Source::State::resolving: return "shardwire.source.resolving";
    case Source::State::leasing: return "shardwire.source.leasing";
    case Source::State::connecting: return "shardwire.source.connecting";
    case Source::State::proving: return "shardwire.source.proving";
    case Source::State::bound: return "shardwire.source.bound";
    case Source::State::moving: return "shardwire.source.moving";
    case Source::State::confirming: return "shardwire.source.confirming";
    case Source::State::released: return "shardwire.source.released";
    case Source::State::lost: return "shardwire.source.lost";
    case Source::State::withdrawn: return "shardwire.source.withdrawn";
  }
  return "shardwire.source.unknown";
}

bool is_last(Source::State state) {
  return state == Source::State::released || state == Source::State::lost || state == Source::State::withdrawn;
}

}  // namespace

Source::Source(const SourceContext& context, Listener& listener, const PathInputs& paths, Options options,
               std::size_t index, Binding binding)
    : context_(context),
      listener_(listener),
      options_(std::move(options)),
      index_(index),
      binding_(std::move(binding)),
      entered_(context.clock.now()),
      requests_(context, binding_, options_.from, [this](const std::exception_ptr& error) { on_failed(error); }),
      fabrics_(context,
               {.changed = [this](SourceFabrics::Report report) { on_fabric(report); },
                .failed = [this](const std::exception_ptr& error) { on_failed(error); }},
               paths, options_.fabrics, binding_, requests_),
      callbacks_([this](const std::exception_ptr& error) { on_failed(error); }) {
}

// --- the table ---

void Source::fire(Event event) {
  const auto row = std::ranges::find_if(
      transitions, [&](const Transition& one) { return one.from == state_ && one.event == event; });
  if (row == transitions.end()) return;
  enter(row->to);
  act(row->action);
}

// A row that stays in its state is no change.
void Source::enter(State next) {
  if (next == state_) return;
  const Clock::Time now = context_.clock.now();
  const State last = std::exchange(state_, next);
  const Clock::Time began = std::exchange(entered_, now);
  if (telemetry::Trace* const of_session = context_.trace) trace(*of_session, last, began);
  if (!context_.logs(LogLevel::debug)) return;
  const double seconds = seconds_of(now - began);
  context_.log(LogLevel::debug,
               fmt::format("source rank {}, member {}, of '{}': {} -> {} after {:.6f} s", to_int(rank()),
                           binding_.record.member, options_.from, to_string(last), to_string(next), seconds));
}

// All states at the end, when it is known how they ended.
void Source::trace(telemetry::Trace& trace, State last, Clock::Time began) {
  if (states_.empty()) {
    states_.reserve(8);  // few sources have more
    states_.push_back({.name = "shardwire.source", .began = began});
  }
  states_.push_back({span_name_of(last), began, entered_});
  if (!is_last(state_)) return;
  states_.front().ended = entered_;
  trace.add("source rank " + std::to_string(to_int(rank())), states_,
            {{"shardwire.source.rank", to_int(rank())},
             {"shardwire.peer.member", binding_.record.member},
             {"shardwire.publication.name", options_.from},
             {"shardwire.source.end", to_string(state_)}});
  states_.clear();
}

void Source::act(Action action) {
  switch (action) {
    case Action::wait: return;
    case Action::request_lease: return request_lease();
    case Action::bind_optimistically:
      if (leasing_ == Leasing::beside) request_lease();
      return listener_.on_bound(*this);
    case Action::connect_anew: fabrics_.restart(); [[fallthrough]];
    case Action::connect_next:
      if (!fabrics_.connect_next()) fire(Event::fabrics_done);
      return;
    case Action::choose_path: finish_binding(); [[fallthrough]];
    case Action::report_bound: return listener_.on_bound(*this);
    case Action::check_generation: return check_generation();
    case Action::ask_source: return requests_.confirm([this] { fire(Event::intact); });
    case Action::report_confirmed:
      drop_answers();
      requests_.give_back();
      return listener_.on_confirmed(*this);
  }
}

void Source::end(Event why, const std::exception_ptr& error) {
  if (is_last(state_)) return;
  enter(std::ranges::find(ends, why, &End::event)->to);
  drop_answers();
  if (error) listener_.on_lost(*this, error);
}

void Source::drop_answers() {
  fabrics_.end();
  requests_.end();
}

void Source::on_failed(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    end(reason.code() == ErrorCode::withdrawn ? Event::refused : Event::failed, error);
  } catch (const std::exception&) {
    end(Event::failed, error);
  }
}

// --- resolving, leasing ---

void Source::start(Leasing leasing) {
  leasing_ = leasing;
  callbacks_.run([this] {
    if (binding_.record.member == context_.member) {
      find_own();
      return fire(Event::own_found);
    }
    find_link();
    fire(leasing_ == Leasing::first ? Event::link_found : Event::binding_kept);
  });
}

void Source::find_own() {
  binding_.own = context_.own_publication(options_.from);
  if (!binding_.own || binding_.own->generation != binding_.record.generation) {
    throw Error(ErrorCode::withdrawn, fmt::format("'{}' was withdrawn while it was being read", options_.from),
                std::vector<Rank>{rank()});
  }
  requests_.lease_own();
  bound_anew_ = binding_.generation != binding_.record.generation;
  binding_.generation = binding_.record.generation;
}

void Source::find_link() {
  const auto link = context_.link(binding_.record);
  if (binding_.link != link) {
    if (leasing_ != Leasing::first) {
      throw Error(ErrorCode::peer_lost,
                  fmt::format("source rank {} disconnected while it was bound again", to_int(rank())),
                  std::vector<Rank>{rank()});
    }
    binding_.generation = 0;
  }
  binding_.link = link;
  requests_.watch([this](const Error& reason) {
    end(Event::link_ended, std::make_exception_ptr(Error(
                               ErrorCode::peer_lost, fmt::format("source rank {}: {}", to_int(rank()), reason.what()),
                               std::vector<Rank>{rank()})));
  });
}

void Source::request_lease() {
  // Beside the lease, unless an earlier operation has connected it.
  const bool connects = options_.fabrics.connect == SourceFabrics::Connect::needed;
  if (connects && binding_.excluded.empty() && binding_.failed_fabrics.empty()) binding_.link->prepare_ahead();
  requests_.ask_for_lease([this] {
    const bool holds = binding_.generation == binding_.record.generation && fabrics_.suffice();
    fire(state_ == State::leasing && holds ? Event::binding_holds : Event::lease_granted);
  });
}

// --- connecting ---

void Source::on_fabric(SourceFabrics::Report report) {
  switch (report) {
    case SourceFabrics::Report::proving: return fire(Event::proof_began);
    case SourceFabrics::Report::bound: return fire(Event::fabric_bound);
    case SourceFabrics::Report::excluded: return fire(Event::fabric_excluded);
  }
}

void Source::finish_binding() {
  fabrics_.choose_path();
  bound_anew_ = true;
  binding_.generation = binding_.record.generation;
  if (options_.fabrics.connect != SourceFabrics::Connect::needed) return;  // keys of other operations stay
  binding_.link->bound(options_.from, binding_.generation, binding_.keys);
}

// --- moving, confirming ---

void Source::begin_moving() {
  fire(Event::move_began);
}

void Source::confirm(bool is_proven) {
  is_proven_ = is_proven;
  callbacks_.run([this] { fire(Event::move_ended); });
}

// The check after the read. Messages may have proven their bytes (Attempt::confirm()), and a live generation word suffices:
// neither takes another answer of the source. Otherwise asks the source, which reports a publication that was withdrawn or
// changed meanwhile.
void Source::check_generation() {
  if (binding_.is_own()) return act(Action::ask_source);
  if (leasing_ == Leasing::beside && requests_.lease() == 0) return;  // checked when the lease arrives
  if (is_proven_ || binding_.word.says_live(binding_.record.generation)) return fire(Event::word_live);
  if (!binding_.word.region || binding_.word.is_mapped()) return fire(Event::word_unclear);
  requests_.read_generation([this](bool live) { fire(live ? Event::word_live : Event::word_unclear); });
}

// --- the end ---

void Source::lose(const Error& error) {
  end(Event::link_ended, std::make_exception_ptr(error));
}

std::optional<Clock::Time> Source::heard(Duration quiet) const {
  return binding_.link ? binding_.link->heard(quiet) : std::nullopt;
}

void Source::release() {
  end(Event::dismissed, nullptr);
  requests_.give_back();
}

Binding Source::take_binding() {
  binding_.own = nullptr;
  return std::move(binding_);
}

std::string_view to_string(Source::State state) {
  return span_name_of(state).substr(span_prefix.size());
}

Sources make_sources(const SourceContext& context, Source::Listener& listener, const PathInputs& paths,
                     const Source::Options& options, std::vector<Binding> bindings) {
  Sources sources;
  for (Binding& binding : bindings) {
    sources.push_back(std::make_unique<Source>(context, listener, paths, options, sources.size(), std::move(binding)));
  }
  return sources;
}

bool have_reached(const Sources& sources, Source::State state) {
  return std::ranges::all_of(
      sources, [&](const auto& one) { return one->state() >= state && one->state() != Source::State::withdrawn; });
}

std::vector<const Binding*> bindings_of(const Sources& sources) {
  std::vector<const Binding*> bindings;
  for (const auto& source : sources) bindings.push_back(&source->binding());
  return bindings;
}

std::vector<SourceProgress> progress_of(const Sources& sources, const Context& context) {
  std::vector<SourceProgress> progress;
  for (const auto& source : sources) {
    const wire::PublicationRecord& record = source->binding().record;
    SourceProgress& one = progress.emplace_back();
    one.rank = source->rank();
    one.unanswered = source->requests().unanswered() > 0;
    if (const auto* at = context.directory.address(record.member, record.epoch)) {
      one.address = fmt::format("{}:{}", at->address, at->port);
    }
  }
  return progress;
}

}  // namespace shardwire::restore
