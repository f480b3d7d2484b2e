// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "restore/binding.hpp"
#include "restore/callbacks.hpp"
#include "restore/context.hpp"
#include "restore/path_decision.hpp"
#include "restore/source_fabrics.hpp"
#include "restore/source_requests.hpp"
#include "restore/verdict.hpp"
#include "runtime/clock.hpp"
#include "shardwire/options.hpp"
#include "telemetry/trace.hpp"

namespace shardwire::restore {

/// One holder of a source rank on the reading side, from the time a plan names it until its bytes are confirmed and its lease is
/// returned, or until it is lost. Owns the binding (fabrics, regions, generation word, path), the lease with the
/// requests under it (SourceRequests) and the fabrics being connected (SourceFabrics).
///
///   resolving ─► leasing ─► connecting ⇄ proving
///       │           │           │
///       └───────────┴─► bound ◄─┘
///                        └─► moving ──► confirming ─► released          any of these ─► lost | withdrawn | released
///
/// Each change of state is one row of `transitions`. An event without a row for the present state is outdated and
/// ignored.
/// Threads: loop thread only.
class Source final {
 public:
  enum class State : std::uint8_t {
    resolving,   ///< no request was sent yet
    leasing,     ///< a lease was requested
    connecting,  ///< binding fabrics, one after the other
    proving,     ///< the first read over a fabric is in flight
    bound,       ///< its memory and the paths to it are known
    moving,      ///< its bytes are being read
    confirming,  ///< all bytes have arrived; checks that the publication was live until then
    released,    ///< no longer used, from whatever state
    lost,        ///< the source, or every path to it, is unusable
    withdrawn,   ///< the source has withdrawn the publication
  };
  enum class Event : std::uint8_t {
    link_found,       ///< a connection exists or is being made
    own_found,        ///< the source is this process
    binding_kept,     ///< an earlier binding is read before the lease arrives, or without any
    lease_granted,    ///< the memory is to be bound
    binding_holds,    ///< the lease is granted, and an earlier binding is still valid
    proof_began,      ///< see proving
    fabric_bound,     ///< one fabric is usable
    fabric_excluded,  ///< one fabric is not
    fabrics_done,     ///< no other fabric would be better
    move_began,
    move_ended,    ///< all bytes have arrived
    word_live,     ///< the generation word says that the publication is live, or the messages have proven it
    word_unclear,  ///< the word is not live, or unreadable
    intact,        ///< the source confirms it
    link_ended,
    refused,    ///< the source has withdrawn the publication
    failed,     ///< any other failure that makes the source unusable
    dismissed,  ///< the restore is over, or continues without this source
  };
  enum class Action : std::uint8_t {
    wait,
    request_lease,
    bind_optimistically,  ///< reports that it is bound, while the lease is requested if there is to be one
    connect_anew,         ///< forgets what is connected
    connect_next,
    choose_path,
    report_bound,
    check_generation,  ///< looks at the generation word after the last byte
    ask_source,        ///< whether the bytes were unchanged
    report_confirmed,
  };
  struct Transition {
    State from;
    Event event;
    State to;
    Action action;
  };
  /// The life of a source, from its first event to its last byte.
  static const std::array<Transition, 19> transitions;
  /// The events that end it in any state but the last three.
  struct End {
    Event event;
    State to;
  };
  static const std::array<End, 4> ends;

  /// Reports to the source's restore. A call may release the source, but not destroy it.
  class Listener {
   public:
    /// The source's memory is known. Once.
    virtual void on_bound(Source& source) = 0;
    /// Once, last. `error` names the source; its code is `withdrawn` where the publication was taken back.
    virtual void on_lost(Source& source, const std::exception_ptr& error) = 0;
    /// Every byte was read while the publication was live. Once, last.
    virtual void on_confirmed(Source& source) = 0;

   protected:
    ~Listener() = default;
  };

  /// Time of waiting for a lease.
  enum class Leasing : std::uint8_t {
    first,   ///< nothing is read before it arrives
    beside,  ///< optimistic read: requested at once, awaited at the end only
    none,    ///< optimistic read without a lease; the bytes count if the generation is still live afterwards
  };
  struct Options {
    std::string from{};  ///< name of the publication
    SourceFabrics::Options fabrics{};
  };

  /// `index`: the caller's number for it. `binding`: the tensors to read, with the remains of an earlier operation.
  ///          Ownership: borrows all but options and binding.
  Source(const SourceContext& context, Listener& listener, const PathInputs& paths, Options options, std::size_t index,
         Binding binding);
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  /// Call it once. Errors: reported to the listener. Requires for all but Leasing::first: the binding holds.
  void start(Leasing leasing);
  void begin_moving();
  /// Confirms received bytes. Waits first for a pending lease. `is_proven`: every byte came in a message that proves that
  /// the publication was live, so there is nothing to ask.
  void confirm(bool is_proven);
  /// Gives the source up, as if its connection had ended. The listener hears of it.
  void lose(const Error& error);
  /// See SourceLink::heard(). Empty for this process as well.
  [[nodiscard]] std::optional<Clock::Time> heard(Duration quiet) const;
  /// Returns the lease and ignores further answers. Requires: no read of the source is in flight.
  void release();

  /// The source's lease, and requests while it is read.
  [[nodiscard]] SourceRequests& requests() { return requests_; }
  [[nodiscard]] const SourceRequests& requests() const { return requests_; }
  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] Rank rank() const { return binding_.layout_rank; }
  /// The holder's number in the plan.
  [[nodiscard]] Rank holder() const { return binding_.holder; }
  [[nodiscard]] const Binding& binding() const { return binding_; }
  /// Was bound by this object, not by an earlier operation.
  [[nodiscard]] bool bound_anew() const { return bound_anew_; }
  /// For the next operation. Requires: released.
  Binding take_binding();

 private:
  void fire(Event event);
  void enter(State next);
  void trace(telemetry::Trace& trace, State last, Clock::Time began);
  void act(Action action);
  void end(Event why, const std::exception_ptr& error);
  void drop_answers();
  void find_own();
  void find_link();
  void request_lease();
  void finish_binding();
  void check_generation();
  void on_fabric(SourceFabrics::Report report);
  void on_failed(const std::exception_ptr& error);

  const SourceContext& context_;
  Listener& listener_;
  Options options_;
  std::size_t index_;
  Binding binding_;
  State state_ = State::resolving;
  Clock::Time entered_;                  ///< since when it is in state_
  std::vector<telemetry::Span> states_;  ///< before, if there is a trace
  Leasing leasing_ = Leasing::first;
  bool bound_anew_ = false;
  bool is_proven_ = false;
  SourceRequests requests_;
  SourceFabrics fabrics_;
  Callbacks callbacks_;
};

std::string_view to_string(Source::State state);

/// A source was lost, or has withdrawn its publication.
using SourceEnded = std::function<void(const Source& source, const std::exception_ptr& error)>;

/// The sources of one plan, by index.
using Sources = std::vector<std::unique_ptr<Source>>;

/// One for each binding. Ownership: as Source.
Sources make_sources(const SourceContext& context, Source::Listener& listener, const PathInputs& paths,
                     const Source::Options& options, std::vector<Binding> bindings);
/// Each source is in this state, in a later one, or lost. One that has withdrawn reaches none.
bool have_reached(const Sources& sources, Source::State state);
std::vector<const Binding*> bindings_of(const Sources& sources);
/// Their progress as long as they move no bytes.
std::vector<SourceProgress> progress_of(const Sources& sources, const Context& context);

inline constexpr std::array<Source::Transition, 19> Source::transitions{{
    // from              event                    to                 action
    {State::resolving, Event::own_found, State::bound, Action::report_bound},
    {State::resolving, Event::binding_kept, State::bound, Action::bind_optimistically},
    {State::resolving, Event::link_found, State::leasing, Action::request_lease},
    {State::leasing, Event::binding_holds, State::bound, Action::report_bound},
    {State::leasing, Event::lease_granted, State::connecting, Action::connect_anew},
    {State::connecting, Event::proof_began, State::proving, Action::wait},
    {State::connecting, Event::fabric_bound, State::connecting, Action::connect_next},
    {State::connecting, Event::fabric_excluded, State::connecting, Action::connect_next},
    {State::connecting, Event::fabrics_done, State::bound, Action::choose_path},
    {State::proving, Event::fabric_bound, State::connecting, Action::connect_next},
    {State::proving, Event::fabric_excluded, State::connecting, Action::connect_next},
    {State::bound, Event::move_began, State::moving, Action::wait},
    {State::bound, Event::move_ended, State::confirming, Action::check_generation},
    {State::moving, Event::move_ended, State::confirming, Action::check_generation},
    {State::confirming, Event::lease_granted, State::confirming, Action::check_generation},
    {State::confirming, Event::word_live, State::released, Action::report_confirmed},
    {State::confirming, Event::word_unclear, State::confirming, Action::ask_source},
    {State::confirming, Event::intact, State::released, Action::report_confirmed},
    {State::proving, Event::proof_began, State::proving, Action::wait},  // a second try
}};

inline constexpr std::array<Source::End, 4> Source::ends{{
    {Event::link_ended, State::lost},
    {Event::failed, State::lost},
    {Event::refused, State::withdrawn},
    {Event::dismissed, State::released},
}};

}  // namespace shardwire::restore
