// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "session/core.hpp"
#include "session/restore_run.hpp"
#include "support/list_of.hpp"

namespace shardwire {

namespace {

constexpr std::chrono::milliseconds retry_interval(50);
constexpr Rendezvous::ClientId own_client = 0;  // member 0 itself; connections count from 1
// How long a gather that has timed out waits to hear who was missing.
constexpr std::chrono::seconds names_wait(1);

std::vector<Rank> ranks_of(const std::vector<std::int32_t>& members) {
  std::vector<Rank> ranks;
  for (const std::int32_t member : members) ranks.push_back(Rank{member});
  return ranks;
}

}  // namespace

// --- joining ---

void Core::join(Joined joined) {
  joined_ = std::move(joined);
  const Bootstrap& bootstrap = setup_.bootstrap;
  try {
    rendezvous_host_ = resolve(bootstrap.address);
    join_timer_ = std::make_unique<Timer>(loop_);
    retry_timer_ = std::make_unique<Timer>(loop_);
    join_timer_->start(setup_.options.join_timeout, [this] {
      if (!joined_) return;
      const auto report = std::exchange(joined_, nullptr);
      report(std::make_exception_ptr(
          Error(ErrorCode::timed_out,
                fmt::format("member {} could not join at {} port {}: {}", setup_.bootstrap.rank, rendezvous_host_,
                            setup_.bootstrap.port, last_refusal_.empty() ? "no answer" : last_refusal_))));
    });
    if (bootstrap.rank == 0) {
      rendezvous_.emplace(bootstrap.world_size,
                          [this](auto clients, const wire::Message& message) { deliver(clients, message); });
      flush_timer_ = std::make_unique<Timer>(loop_);
      listen({rendezvous_host_, bootstrap.port});
      announce(rendezvous_host_);
    } else {
      connect_to_rendezvous();
    }
  } catch (const Error&) {
    if (joined_) std::exchange(joined_, nullptr)(std::current_exception());
  }
}

void Core::connect_to_rendezvous() {
  Connection::Events events;
  events.ready = [this](Connection& connection) {
    const std::string& wanted = setup_.bootstrap.interface;
    const std::string host = wanted.empty() ? connection.local_host() : interface_address(wanted);
    listen({host, 0});
    announce(host);
  };
  events.message = [this](Connection&, wire::Message& message) { hear(message); };
  events.closed = [this](Connection&, const Error& reason, bool orderly) {
    if (!joined_) return rendezvous_ended(reason, orderly);
    last_refusal_ = reason.what();
    const bool not_there_yet = reason.code() == ErrorCode::peer_lost;
    if (!not_there_yet) return std::exchange(joined_, nullptr)(std::make_exception_ptr(reason));
    retry_timer_->start(retry_interval, [this] {
      if (!joined_) return;
      try {
        connect_to_rendezvous();
      } catch (const Error&) {  // must not cross libuv
        std::exchange(joined_, nullptr)(std::current_exception());
      }
    });
  };
  store_ = Connection::connect(loop_, {rendezvous_host_, setup_.bootstrap.port}, setup_.identity, std::move(events));
}

void Core::announce(const std::string& host) {
  const wire::MemberRecord record{.rank = setup_.bootstrap.rank,
                                  .incarnation = setup_.identity.hello.incarnation,
                                  .host = setup_.identity.hello.host,
                                  .address = host,
                                  .port = listener_->address().port,
                                  .local_path = {}};
  tell_rendezvous(wire::Join{record});
}

// --- talking to the rendezvous ---

void Core::tell_rendezvous(const wire::Message& message) {
  if (rendezvous_) {
    rendezvous_->take(own_client, setup_.identity.hello, message);
    flush_rendezvous();
  } else if (store_) {
    store_->send(message);
  }
}

void Core::flush_rendezvous() {
  const auto now = Rendezvous::Clock::now();
  if (const auto due = rendezvous_->flush(now)) flush_timer_->start(*due - now, [this] { flush_rendezvous(); });
}

void Core::deliver(std::span<const Rendezvous::ClientId> clients, const wire::Message& message) {
  std::optional<Bytes> encoded;  // once for all
  for (const Rendezvous::ClientId client : clients) {
    if (client == own_client) {
      defer([this, message] { hear(message); });
    } else if (const auto found = accepted_.find(client); found != accepted_.end()) {
      if (!encoded) encoded = wire::encode(message);
      found->second->send_encoded(*encoded);
    }
  }
}

void Core::hear(const wire::Message& message) {
  try {
    if (const auto* joined = std::get_if<wire::Joined>(&message)) joined_as(*joined);
    if (const auto* gathered = std::get_if<wire::Gathered>(&message)) {
      end_gathers(gathered->name, gathered->values, nullptr);
    }
    if (const auto* absent = std::get_if<wire::GatherAbsent>(&message)) absent_from_gather(*absent);
    if (const auto* failure = std::get_if<wire::Failure>(&message)) gather_refused(*failure);
    if (const auto* addresses = std::get_if<wire::Addresses>(&message)) {
      directory_.apply(*addresses);
      for (const auto& entry : addresses->members) connect_waiting(entry.member.rank, nullptr);
      const Error absent(ErrorCode::peer_lost, "it is not in the session any more");
      for (const std::int32_t member : addresses->absent) connect_waiting(member, &absent);
    }
    const auto* roster = std::get_if<wire::Roster>(&message);
    const auto* departures = std::get_if<wire::Departures>(&message);
    if (roster != nullptr) directory_.apply(*roster);
    if (departures != nullptr) directory_.apply(*departures);
    if (roster != nullptr || departures != nullptr) directory_changed();
  } catch (const Error& error) {
    log(LogLevel::warning, error.what());
  }
}

void Core::joined_as(const wire::Joined&) {
  if (!joined_) return;
  join_timer_->stop();
  std::exchange(joined_, nullptr)(nullptr);
}

void Core::watch(const std::string& name) {
  if (!directory_.knows(name)) require_rendezvous(fmt::format("who publishes '{}'", name));
  if (watched_.insert(name).second) tell_rendezvous(wire::Watch{name});
}

void Core::require_rendezvous(const std::string& what) const {
  if (!store_lost_) return;
  throw Error(store_lost_->code(), fmt::format("{}; {} cannot be learnt any more", store_lost_->what(), what),
              store_lost_->ranks());
}

void Core::look_up(const wire::PublicationRecord& record, const std::shared_ptr<Link>& link) {
  auto& waiting = unresolved_[record.member];
  waiting.emplace_back(record.turn, link);
  if (waiting.size() > 1) return;  // asked for already
  // One message for all that this turn of the loop needs.
  if (to_look_up_.empty()) defer([this] { send_lookup(); });
  to_look_up_.push_back(record.member);
}

void Core::send_lookup() {
  wire::Lookup lookup{std::exchange(to_look_up_, {})};
  std::sort(lookup.members.begin(), lookup.members.end());
  tell_rendezvous(lookup);
}

void Core::connect_waiting(int member, const Error* absent) {
  const auto waiting = unresolved_.extract(member);
  if (waiting.empty()) return;
  for (const auto& [turn, weak] : waiting.mapped()) {
    const auto link = weak.lock();
    if (!link || link->broken()) continue;
    const wire::MemberRecord* address = directory_.address(member, turn);
    try {
      if (absent != nullptr) {
        link->fail(*absent);
      } else if (address == nullptr) {
        link->fail(Error(ErrorCode::peer_lost, "another process has taken its number"));
      } else {
        link->connect(loop_, *address, setup_.identity);
      }
    } catch (const Error& error) {
      link->fail(error);
    }
  }
}

void Core::directory_changed() {
  for (const auto& run : restores_) run->directory_changed();
}

void Core::rendezvous_ended(const Error& reason, bool orderly) {
  store_lost_ =
      Error(ErrorCode::peer_lost,
            fmt::format("member 0, which serves the rendezvous, {}: {}", orderly ? "left" : "is lost", reason.what()),
            std::vector<Rank>{Rank{0}});
  log(orderly ? LogLevel::debug : LogLevel::warning, store_lost_->what());
  end_all_gathers(*store_lost_);
  while (!unresolved_.empty()) connect_waiting(unresolved_.begin()->first, &*store_lost_);
  directory_changed();
}

void Core::leave() {
  for (const auto& [key, link] : links_) {
    if (link && !link->broken()) link->leave();
  }
  if (store_) store_->leave();
  for (const auto& [id, connection] : accepted_) connection->leave();
  accepted_.clear();
}

// --- gather ---

void Core::gather(const std::string& name, const Bytes& value, Duration timeout,
                  std::function<void(std::vector<Bytes>, std::exception_ptr)> done) {
  if (store_lost_) return done({}, std::make_exception_ptr(*store_lost_));
  Gather gather{name, next_gather_++, std::move(done), std::make_unique<Timer>(loop_)};
  gather.timer->start(timeout, [this, request = gather.request] { gather_times_out(request); });
  const wire::Gather message{gather.request, name, value};
  gathers_.push_back(std::move(gather));
  try {
    tell_rendezvous(message);
  } catch (const Error& error) {
    gather_refused(wire::Failure{message.request, error.code(), error.what()});
  }
}

// Only the rendezvous knows who is missing. If it does not answer either, the gather ends without names.
void Core::gather_times_out(std::uint64_t request) {
  const auto found = find_gather(request);
  if (found == gathers_.end()) return;
  if (found->quitting) {
    return end_gather(found, {},
                      std::make_exception_ptr(
                          Error(ErrorCode::timed_out, fmt::format("members did not come to '{}', and member 0 does not "
                                                                  "answer which",
                                                                  found->name))));
  }
  found->quitting = true;
  found->timer->start(names_wait, [this, request] { gather_times_out(request); });
  tell_rendezvous(wire::GatherQuit{found->name});
}

void Core::absent_from_gather(const wire::GatherAbsent& absent) {
  const auto names =
      fmt::format("member{} {}", absent.members.size() == 1 ? "" : "s", support::list_of(absent.members));
  const std::string why = absent.lost ? fmt::format("{} {} lost before coming to '{}'", names,
                                                    absent.members.size() == 1 ? "is" : "are", absent.name)
                                      : fmt::format("{} did not come to '{}'", names, absent.name);
  end_gathers(absent.name, {},
              std::make_exception_ptr(
                  Error(absent.lost ? ErrorCode::peer_lost : ErrorCode::timed_out, why, ranks_of(absent.members))),
              !absent.lost);
}

void Core::gather_refused(const wire::Failure& failure) {
  const auto found = find_gather(failure.request);
  if (found == gathers_.end()) return log(LogLevel::warning, failure.message);
  end_gather(found, {}, std::make_exception_ptr(Error(failure.code, failure.message)));
}

std::vector<Core::Gather>::iterator Core::find_gather(std::uint64_t request) {
  return std::find_if(gathers_.begin(), gathers_.end(), [&](const Gather& one) { return one.request == request; });
}

void Core::end_gather(std::vector<Gather>::iterator gather, const std::vector<Bytes>& gathered,
                      const std::exception_ptr& error) {
  const Gather ended = std::move(*gather);
  gathers_.erase(gather);
  ended.done(gathered, error);
}

void Core::end_gathers(const std::string& name, const std::vector<Bytes>& gathered, const std::exception_ptr& error,
                       bool quitting_only) {
  while (true) {
    const auto found = std::find_if(gathers_.begin(), gathers_.end(), [&](const Gather& one) {
      return one.name == name && (one.quitting || !quitting_only);
    });
    if (found == gathers_.end()) return;
    end_gather(found, gathered, error);
  }
}

void Core::end_all_gathers(const Error& error) {
  while (!gathers_.empty()) end_gather(gathers_.begin(), {}, std::make_exception_ptr(error));
}

}  // namespace shardwire
