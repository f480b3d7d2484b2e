// SPDX-License-Identifier: Apache-2.0
#include "control/membership.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <tuple>
#include <utility>

#include "runtime/clock.hpp"
#include "runtime/stream.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace {

constexpr std::chrono::milliseconds retry_interval(50);
constexpr std::chrono::seconds refused_interval(1);  // before addresses that refused are tried again
constexpr std::chrono::seconds attempt_limit(3);
constexpr std::chrono::seconds inquiry_limit(2);
constexpr std::size_t max_unneeded_watches = 64;
constexpr Rendezvous::ClientId own_client = 0;  // member 0 itself; connections count from 1

std::string job_of(const Bootstrap& bootstrap) {
  return bootstrap.run_id.empty() ? std::string() : fmt::format(" of job '{}'", bootstrap.run_id);
}

// "member 2"; with `of_all`, "member 2 of 4".
std::string joiner(const Bootstrap& bootstrap, bool of_all) {
  if (bootstrap.guest) return "a guest";
  const std::string member = fmt::format("member {}", bootstrap.rank);
  return of_all ? fmt::format("{} of {}", member, bootstrap.world_size) : member;
}

}  // namespace

Membership::Membership(Loop& loop, Host& host, Clients& clients, const Bootstrap& bootstrap, const Identity& identity)
    : loop_(loop),
      host_(host),
      clients_(clients),
      bootstrap_(bootstrap),
      identity_(identity),
      directory_(bootstrap.world_size),
      gathers_(loop, bootstrap.world_size, [this](const wire::Message& message) { send(message); }),
      join_timer_(loop),
      retry_timer_(loop),
      log_timer_(loop) {
}

Membership::~Membership() {
  gathers_.end_all(Error(ErrorCode::cancelled, "the session was closed"));
  if (connection_) connection_->drop();
  if (inquiry_) inquiry_->drop();
}

// --- joining ---

void Membership::join(std::vector<SocketAddress> rendezvous, Duration timeout, Joined joined) {
  joined_ = std::move(joined);
  rendezvous_at_ = std::move(rendezvous);
  contact_ = rendezvous_at_.front();
  try {
    if (!bootstrap_.interface.empty()) interface_address(bootstrap_.interface);  // a wrong name fails at once
    join_timer_.start(timeout, [this, timeout] { time_out(timeout); });
    if (bootstrap_.rank != 0) {
      log_timer_.start(log_after, [this] { log_wait(); });
      return connect();
    }
    rendezvous_.emplace(bootstrap_.world_size, identity_.hello.incarnation,
                        [this](auto clients, const wire::Message& message) { deliver(clients, message); });
    flush_timer_ = std::make_unique<Timer>(loop_);
    listen_as_rendezvous();
  } catch (const Error&) {
    end_joining(std::current_exception());
  }
}

void Membership::rendezvous_moved(std::vector<SocketAddress> rendezvous) {
  if (!joined_) return;
  rendezvous_at_ = std::move(rendezvous);
  tried_ = 0;
  failed_attempt_.reset();
  if (connection_ == nullptr || !connection_->ready()) try_next();
}

void Membership::connect() {
  retry_timer_.stop();  // the timer of an earlier attempt would end this one
  contact_ = rendezvous_at_[tried_++ % rendezvous_at_.size()];
  Connection::Events events;
  events.ready = [this](Connection& connection) {
    const std::string& wanted = bootstrap_.interface;
    announce({wanted.empty() ? connection.local_host() : interface_address(wanted), 0});
  };
  events.message = [this](Connection&, wire::Message& message) { receive(message); };
  events.closed = [this](Connection&, const Error& reason, bool orderly) {
    if (!joined_) return ended(reason, orderly);
    // A process that has not answered yet may still do so: it can be stopped, or busy.
    const bool silent = reason.code() == ErrorCode::peer_lost || reason.code() == ErrorCode::timed_out;
    not_joined(reason, !silent);
  };
  try {
    connection_ = Connection::connect(loop_, contact_, identity_, std::move(events));
  } catch (const Error& error) {  // an address family that this host lacks
    if (!bootstrap_.store || error.code() == ErrorCode::out_of_resources) throw;
    return not_joined(error, false);
  }
  if (rendezvous_at_.size() == 1) return;
  // An address that is unreachable from here may stay silent for minutes.
  retry_timer_.start(attempt_limit, [this] {
    if (joined_ && !connection_->reached()) try_next();
  });
}

void Membership::try_next() {
  if (!joined_) return;
  if (connection_) connection_->drop();
  try {
    connect();
  } catch (const Error&) {  // must not reach the loop
    end_joining(std::current_exception());
  }
}

// Retries after an unreachable address. A refusal is final if the address was given to all members. An address from a
// store may be outdated: a refusal there comes from another process and says nothing about member 0.
void Membership::not_joined(const Error& reason, bool answered) {
  if (answered && !bootstrap_.store) {
    return end_joining(std::make_exception_ptr(
        Error(reason.code(), fmt::format("{}{} could not join at {} port {}: {}", joiner(bootstrap_, false),
                                         job_of(bootstrap_), contact_.host, contact_.port, reason.what()))));
  }
  if (answered && !(failed_attempt_ && failed_attempt_->why == reason.what())) {
    host_.log(LogLevel::warning, fmt::format("{} is refused at {} port {}, and looks further: {}",
                                             joiner(bootstrap_, false), contact_.host, contact_.port, reason.what()));
  }
  if (answered || !failed_attempt_ || !failed_attempt_->answered)
    failed_attempt_ = FailedAttempt{contact_, reason.what(), answered};
  const bool all_tried = tried_ % rendezvous_at_.size() == 0;
  retry_timer_.start(failed_attempt_->answered && all_tried ? refused_interval : retry_interval,
                     [this] { try_next(); });
}

void Membership::time_out(Duration after) {
  const auto [at, why, answered] =
      failed_attempt_.value_or(FailedAttempt{contact_, fmt::format("no answer in {:.3g} s", seconds_of(after)), false});
  end_joining(std::make_exception_ptr(
      Error(ErrorCode::timed_out,
            fmt::format("{}{} could not join at {} port {}, where member 0 has to be: {}{}", joiner(bootstrap_, true),
                        job_of(bootstrap_), at.host, at.port, why,
                        answered ? "" : ". Does member 0 run there, and may this host reach that TCP port?"),
            std::vector<Rank>{Rank{0}})));
}

void Membership::log_wait() {
  const bool reached = connection_ && connection_->ready();
  host_.log(LogLevel::warning,
            fmt::format("{}{} waits for member 0 at {} port {}: {}", joiner(bootstrap_, true), job_of(bootstrap_),
                        contact_.host, contact_.port,
                        failed_attempt_ && !reached ? failed_attempt_->why : std::string("no answer yet")));
}

// Listens at the address that all members expect: a taken port is an error. With several addresses, some may be
// unusable.
void Membership::listen_as_rendezvous() {
  std::vector<SocketAddress> listening;
  std::exception_ptr failure;
  for (const SocketAddress& at : rendezvous_at_) {
    try {
      listening.push_back({at.host, clients_.listen(at)});
    } catch (const PortTaken& taken) {
      contact_ = at;
      return find_out_who_listens(taken);
    } catch (const Error& error) {
      host_.log(LogLevel::debug, error.what());
      failure = std::current_exception();
    }
  }
  if (listening.empty()) std::rethrow_exception(failure);
  rendezvous_at_ = std::move(listening);
  contact_ = rendezvous_at_.front();
  announce(contact_);
}

// Identifies the process on the port by a handshake, in which members of jobs give their names.
void Membership::find_out_who_listens(const Error& taken) {
  const auto end = [this,
                    text = fmt::format("member 0{} {}", job_of(bootstrap_), taken.what())](const std::string& who) {
    if (inquiry_) inquiry_->drop();
    end_joining(std::make_exception_ptr(
        Error(ErrorCode::invalid_argument, fmt::format("{}: {}. SHARDWIRE_PORT chooses another port", text, who))));
  };
  Connection::Events events;
  events.ready = [end](Connection&) { end("a member 0 of this job is there already"); };
  events.closed = [end](Connection&, const Error& reason, bool) {
    end("the process that listens there could not be identified: " + std::string(reason.what()));
  };
  inquiry_ = Connection::connect(loop_, contact_, identity_, std::move(events));
  retry_timer_.start(inquiry_limit, [end] { end("the process that listens there is not a member of a job"); });
}

// Announces the address from which this member reaches the rendezvous, with any free port; the rendezvous already
// listens.
void Membership::announce(const SocketAddress& at) {
  const std::uint16_t port = rendezvous_ ? at.port : clients_.listen(at);
  listening_host_ = at.host;
  const wire::MemberRecord record{.rank = bootstrap_.rank,
                                  .incarnation = identity_.hello.incarnation,
                                  .host = identity_.hello.host,
                                  .address = at.host,
                                  .port = port,
                                  .local_path = clients_.listen_locally(),
                                  .domain = identity_.domain};
  if (rendezvous_) warn_of_open_network(at.host);
  asked_ = loop_.now();
  send(wire::Join{record});
}

void Membership::joined(const wire::Joined& as) {
  const bool fits = bootstrap_.guest ? as.member >= as.world_size
                                     : as.member == bootstrap_.rank && as.world_size == bootstrap_.world_size;
  if (!fits || as.world_size < 1) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("member 0 says that this is member {} of {}", as.member, as.world_size));
  }
  directory_.set_members(as.world_size);
  // From here on a guest has its number. The session was there when this process asked, however late it reads the answer.
  host_.seated(as, std::min(asked_, loop_.now() - std::chrono::nanoseconds(as.age_ns)));
  const std::string interface = loop_.interface_of(listening_host_);
  const std::string job = bootstrap_.run_id.empty() ? std::string() : fmt::format(" job '{}'", bootstrap_.run_id);
  const char* const what = as.member >= as.world_size ? " as a guest" : "";
  host_.log(LogLevel::info,
            fmt::format("member {} of {} joined{}{} at {} port {}, over {} ({}){}", as.member, as.world_size, job, what,
                        contact_.host, contact_.port, interface.empty() ? "an unnamed interface" : interface,
                        listening_host_, connection_ && connection_->encrypted() ? ", encrypted (TLS 1.3)" : ""));
  if (connection_ && identity_.tls != nullptr && !connection_->encrypted()) {
    host_.log(LogLevel::warning, "the connection to member 0 is not encrypted: member 0 has no OpenSSL 3");
  }
  end_joining(nullptr);
}

// Warns once per job, and not again if this process joins another.
void Membership::warn_of_open_network(const std::string& host) {
  if (!identity_.job_key.empty() || !identity_.open_network || is_loopback(host)) return;
  static std::atomic<bool> warned = false;
  if (warned.exchange(true)) return;
  host_.log(LogLevel::warning, fmt::format("the job has no key, and its rendezvous is at {}, which other hosts can "
                                           "reach: any process that connects can join, read and publish. "
                                           "SHARDWIRE_JOB_KEY_FILE names a file with a key",
                                           host));
}

void Membership::end_joining(const std::exception_ptr& error) {
  if (!joined_) return;
  join_timer_.stop();
  log_timer_.stop();
  std::exchange(joined_, nullptr)(error);
}

void Membership::leave() {
  if (connection_) connection_->leave();
}

// --- the rendezvous of this process ---

void Membership::serve(const Connection& member, const wire::Message& message) {
  if (!rendezvous_) throw Error(ErrorCode::invalid_argument, "this member does not serve the rendezvous");
  if (const auto* join = std::get_if<wire::Join>(&message);
      join != nullptr && join->member.rank == member.peer().rank) {
    const auto holder = rendezvous_->holder(join->member.rank);
    if (holder && *holder != own_client && *holder != member.id()) return claim(member, *join, *holder);
  }
  rendezvous_->take(member.id(), member.peer(), message, loop_.now());
  log_received(member.peer().rank, message);
  flush();
}

void Membership::claim(const Connection& member, const wire::Join& join, Rendezvous::ClientId holder) {
  const auto take = [this, id = member.id(), peer = member.peer(), join] {
    clients_.serve_later(id, [&] {
      rendezvous_->take(id, peer, join, loop_.now());
      log_received(peer.rank, join);
      flush();
    });
  };
  clients_.check_alive(holder, [this, holder, rank = join.member.rank, take](bool alive) {
    if (!alive) {
      const std::string text =
          fmt::format("another process has taken the seat of member {}, which had not answered for {} s", rank,
                      seconds_of(identity_.liveness.limit));
      host_.log(LogLevel::warning, text);
      clients_.dismiss(holder, Error(ErrorCode::cancelled, text));
    }
    take();
  });
}

// Logs joins and publications for users; only on the rendezvous, which receives those of all members.
void Membership::log_received(int member, const wire::Message& message) const {
  if (const auto* join = std::get_if<wire::Join>(&message)) {
    const std::string who =
        member == wire::no_member ? "a guest" : fmt::format("member {} of {}", member, bootstrap_.world_size);
    host_.log(LogLevel::info, fmt::format("{} joined from {} port {}", who, join->member.address, join->member.port));
  }
  if (const auto* publish = std::get_if<wire::Publish>(&message)) {
    host_.log(LogLevel::info,
              fmt::format("member {} {} '{}', step {}", publish->record.member,
                          publish->record.live ? "published" : "withdrew", publish->publication, publish->record.step));
  }
}

void Membership::closed(const Connection& member, bool orderly) {
  if (!rendezvous_) return;
  rendezvous_->closed(member.id(), orderly);
  flush();
}

void Membership::flush() {
  const auto now = loop_.now();
  if (const auto due = rendezvous_->flush(now)) flush_timer_->start(*due - now, [this] { flush(); });
}

void Membership::deliver(std::span<const Rendezvous::ClientId> clients, const wire::Message& message) {
  std::optional<Bytes> encoded;  // encoded once for all
  const bool notice = Rendezvous::is_notice(message);
  for (const Rendezvous::ClientId client : clients) {
    if (client == own_client) {
      host_.defer([this, message] { receive(message); });
      continue;
    }
    if (!encoded) encoded = wire::encode(message);
    if (notice) {
      clients_.notify(client, *encoded);
    } else {
      clients_.send_to(client, *encoded);
    }
  }
}

// --- talking to the rendezvous ---

void Membership::send(const wire::Message& message) {
  if (rendezvous_) {
    rendezvous_->take(own_client, identity_.hello, message, loop_.now());
    flush();
  } else if (connection_ && connection_->ready()) {
    connection_->send(message);
  }
}

void Membership::receive(const wire::Message& message) {
  try {
    if (const auto* as = std::get_if<wire::Joined>(&message)) joined(*as);
    if (const auto* gathered = std::get_if<wire::Gathered>(&message)) gathers_.receive(*gathered);
    if (const auto* absent = std::get_if<wire::GatherAbsent>(&message)) gathers_.receive(*absent);
    if (const auto* failure = std::get_if<wire::Failure>(&message); failure != nullptr && !gathers_.receive(*failure)) {
      host_.log(LogLevel::warning, failure->message);
    }
    if (const auto* addresses = std::get_if<wire::Addresses>(&message)) {
      wire::Addresses known = *addresses;
      for (auto& [epoch, member] : known.members) {
        // The contacted address: the record may have one that reaches member 0 only from elsewhere.
        if (member.rank == 0 && !rendezvous_)
          std::tie(member.address, member.port) = std::tie(contact_.host, contact_.port);
      }
      directory_.apply(known);
      host_.addresses_came(known);
    }
    if (const auto* raised = std::get_if<wire::AttemptRaised>(&message)) host_.attempt_raised(raised->attempt);
    const auto* roster = std::get_if<wire::Roster>(&message);
    if (roster != nullptr && !expects(*roster)) return;
    const auto* membership_changes = std::get_if<wire::MembershipChanges>(&message);
    if (roster != nullptr) directory_.apply(*roster);
    if (membership_changes != nullptr) directory_.apply(*membership_changes);
    const auto* given_up = std::get_if<wire::ExchangeGivenUp>(&message);
    if (given_up != nullptr) directory_.apply(*given_up);
    if (roster != nullptr || membership_changes != nullptr || given_up != nullptr) host_.directory_changed();
  } catch (const Error& error) {
    host_.log(LogLevel::warning, error.what());
  }
}

// Rosters of a watch that has ended may still arrive, also after the next watch of the name has begun.
bool Membership::expects(const wire::Roster& roster) const {
  return watched_.contains(roster.publication) && (roster.whole || directory_.knows(roster.publication));
}

Membership::Watch Membership::watch(const std::string& name) {
  if (!directory_.knows(name)) require_rendezvous(fmt::format("the publishers of '{}'", name));
  const auto found = watched_.find(name);
  if (found != watched_.end()) {
    if (Watch watch = found->second.lock()) return watch;
    unneeded_.remove(name);
  } else if (watched_.size() >= wire::max_names_of_member) {
    throw Error(ErrorCode::out_of_resources,
                fmt::format("this member restores from {} names at a time, the most there may be", watched_.size()));
  } else {
    send(wire::Watch{name});
  }
  Watch watch(this, [name, alive = std::weak_ptr<bool>(alive_)](const void* self) {
    if (!alive.expired()) const_cast<Membership*>(static_cast<const Membership*>(self))->end_watch(name);
  });
  watched_[name] = watch;
  return watch;
}

std::size_t Membership::needed_names() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(watched_, [](const auto& one) { return !one.second.expired(); }));
}

// Without the rendezvous a name that is forgotten cannot be learnt again.
void Membership::end_watch(const std::string& name) {
  unneeded_.push_back(name);
  while (unneeded_.size() > max_unneeded_watches && !lost_) {
    const std::string oldest = std::move(unneeded_.front());
    unneeded_.pop_front();
    watched_.erase(oldest);
    directory_.forget(oldest);
    send(wire::Unwatch{oldest});
  }
}

void Membership::require_rendezvous(const std::string& what) const {
  if (!lost_) return;
  throw Error(lost_->code(), fmt::format("{}; {} cannot be learnt any more", lost_->what(), what), lost_->ranks());
}

std::uint64_t Membership::gather(const std::string& name, const Bytes& value, Gathers::Kind kind, Duration timeout,
                                 Gathers::Done done) {
  if (!lost_) return gathers_.start(name, value, kind, timeout, std::move(done));
  done({}, std::make_exception_ptr(*lost_));
  return 0;
}

void Membership::ended(const Error& reason, bool orderly) {
  if (reason.code() == ErrorCode::cancelled) {  // another process has taken over this member's number
    lost_ = Error(ErrorCode::peer_lost, fmt::format("this process is out of the session: {}", reason.what()),
                  std::vector<Rank>{Rank{bootstrap_.rank}});
  } else {
    lost_ =
        Error(ErrorCode::peer_lost,
              fmt::format("member 0, which serves the rendezvous, {}: {}", orderly ? "left" : "is lost", reason.what()),
              std::vector<Rank>{Rank{0}});
  }
  host_.log(orderly ? LogLevel::debug : LogLevel::warning, lost_->what());
  gathers_.end_all(*lost_);
  host_.rendezvous_lost(*lost_);
  host_.directory_changed();
}

}  // namespace shardwire
