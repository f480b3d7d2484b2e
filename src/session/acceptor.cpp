// SPDX-License-Identifier: Apache-2.0
#include "session/acceptor.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "support/descriptors.hpp"

namespace shardwire {

namespace {

constexpr unsigned max_logged_refusals = 16;  // of one connection
constexpr std::size_t max_strangers = 64;     // addresses of which it is logged that they were refused
// Any process can open connections without a proof, so their number is bounded.
constexpr std::size_t max_accepted = 65536;
// Grace period: a member proves its identity in a few milliseconds.
constexpr std::chrono::milliseconds unhurried(500);
// All members of one host may connect at once.
std::size_t max_unproven_per_address(int world_size) {
  return std::max<std::size_t>(64, static_cast<std::size_t>(world_size));
}

// What a refused process and this job do not have in common. Version and limit are no refusals of a stranger.
const char* difference_of(telemetry::Rejection why) {
  using telemetry::Rejection;
  switch (why) {
    case Rejection::bad_key: return "job key";
    case Rejection::other_user: return "user, host or job key";
    case Rejection::run_id: return "run id";
    case Rejection::world_size: return "number of members";
    case Rejection::version:
    case Rejection::unproven_limit: break;
  }
  return "version";
}

}  // namespace

// In the order in which a connection checks, but for the user, which the hello does not tell. Without a key, a process of another
// user with another run id therefore counts as one of another run id, and a peer with a key as one of another user.
std::optional<telemetry::Rejection> rejection_of(const Identity& own, const wire::Hello& hello, ErrorCode code) {
  using telemetry::Rejection;
  if (hello.version != own.hello.version) return Rejection::version;
  if (code != ErrorCode::invalid_argument) return std::nullopt;
  if (hello.run_id != own.hello.run_id) return Rejection::run_id;
  const bool know_size = hello.world_size != 0 && own.hello.world_size != 0;
  if (know_size && hello.world_size != own.hello.world_size) return Rejection::world_size;
  return own.job_key.empty() && !own.open_network ? Rejection::other_user : Rejection::bad_key;
}

Acceptor::Acceptor(Loop& loop, const Identity& identity, const Setup& setup, Events events)
    : loop_(loop),
      identity_(identity),
      setup_(setup),
      events_(std::move(events)),
      unproven_(loop, max_unproven_per_address(setup.world_size)) {
}

Acceptor::~Acceptor() {
  for (const auto& [id, connection] : accepted_) connection->drop();
}

transport::OpenSocket Acceptor::release(Connection& connection) {
  auto [descriptor, encryption] = connection.release();
  accepted_.erase(connection.id());
  refusals_.erase(connection.id());
  return {std::move(descriptor), std::move(encryption)};
}

void Acceptor::leave() {
  for (const auto& [id, connection] : accepted_) connection->leave();
  accepted_.clear();
}

std::uint16_t Acceptor::listen(const SocketAddress& at) {
  auto& listener = listeners_[at.host];
  listener = loop_.listen(at, [this](const AcceptedStream& open) { accept(open); });
  return listener->address().port;
}

std::string Acceptor::listen_locally() {
  if (!setup_.needs_local_sockets) return {};
  const std::string name = fmt::format("shardwire-{:016x}", identity_.hello.incarnation);
  try {
    local_listener_ = loop_.listen_local(name, [this](const AcceptedStream& open) { accept(open); });
  } catch (const Error& error) {
    events_.log(LogLevel::warning,
                fmt::format("peers of this host cannot share memory with member {}: {}", setup_.member, error.what()));
    return {};
  }
  return name;
}

void Acceptor::accept(const AcceptedStream& open) {
  Connection::Events events;
  events.ready = [this](Connection& connection) { unproven_.remove(connection.id()); };
  events.message = [this](Connection& connection, wire::Message& message) { serve(connection, message); };
  events.closed = [this](Connection& connection, const Error& reason, bool orderly) {
    closed(connection, reason, orderly);
  };
  try {
    make_room();
    const auto connection = Connection::accept(loop_, open, identity_, std::move(events));
    if (accepted_.size() >= max_accepted) return connection->drop();
    accepted_.emplace(connection->id(), connection);
    if (const auto oldest = unproven_.add(connection->id(), connection->remote_host())) drop_unproven(*oldest);
  } catch (const Error& error) {
    events_.log(LogLevel::warning, fmt::format("a connection could not be accepted: {}", error.what()));
  }
}

void Acceptor::closed(Connection& connection, const Error& reason, bool orderly) {
  const bool fault = reason.code() == ErrorCode::out_of_resources;
  events_.log(fault ? LogLevel::warning : LogLevel::debug,
              fmt::format("member {} disconnected: {}", connection.peer().rank, reason.what()));
  const auto address = unproven_.remove(connection.id());
  if (const auto why = address ? rejection_of(identity_, connection.peer(), reason.code()) : std::nullopt) {
    if (reason.code() == ErrorCode::invalid_argument) warn_of_stranger(*address, *why);
    events_.rejected(*why);
  }
  accepted_.erase(connection.id());
  refusals_.erase(connection.id());
  events_.closed(connection, orderly);
}

// The text has nothing that the process has sent, only which comparison has failed. Once per address, and for a bounded
// number of them: any process can connect again and again.
void Acceptor::warn_of_stranger(const std::string& address, telemetry::Rejection why) {
  if (strangers_.size() == max_strangers || !strangers_.insert(address).second) return;
  events_.log(
      LogLevel::warning,
      fmt::format("refused a connection from {}: its {} is not that of this job. Its own error has the details, and "
                  "so has SHARDWIRE_LOG=debug here; further refusals from there are logged at that level only",
                  address, difference_of(why)));
}

// Closes only slow connections: otherwise members that connect at the same time would close each other's.
void Acceptor::make_room() {
  while (!support::descriptors_left(Connection::descriptors_per_peer)) {
    const auto oldest = unproven_.oldest(loop_.now() - unhurried);
    if (!oldest) return;
    unproven_.remove(*oldest);
    drop_unproven(*oldest);
  }
}

void Acceptor::drop_unproven(Unproven::Id id) {
  const auto dropped = accepted_.extract(id);
  if (dropped.empty()) return;
  events_.log(LogLevel::debug, fmt::format("too many connections from {} have proven nothing; the oldest is closed",
                                           dropped.mapped()->remote_host()));
  dropped.mapped()->drop();
  events_.rejected(telemetry::Rejection::unproven_limit);
}

void Acceptor::send_to(Rendezvous::ClientId client, const Bytes& encoded) {
  if (const auto found = accepted_.find(client); found != accepted_.end()) found->second->send_encoded(encoded);
}

void Acceptor::notify(Rendezvous::ClientId client, const Bytes& encoded) {
  if (const auto found = accepted_.find(client); found != accepted_.end()) found->second->notify(encoded);
}

void Acceptor::check_alive(Rendezvous::ClientId client, Connection::Verdict verdict) {
  const auto found = accepted_.find(client);
  if (found == accepted_.end()) return verdict(false);
  found->second->check_alive(std::move(verdict));
}

void Acceptor::dismiss(Rendezvous::ClientId client, const Error& why) {
  const auto found = accepted_.find(client);
  if (found == accepted_.end()) return;
  const auto connection = found->second;  // which leaves the table during the call
  connection->dismiss(why);
}

void Acceptor::serve_later(Rendezvous::ClientId client, const std::function<void()>& task) {
  const auto found = accepted_.find(client);
  if (found == accepted_.end()) return;
  const auto connection = found->second;
  answer(*connection, 0, task);
}

void Acceptor::log_refusal(const Connection& connection, const std::string& text) {
  unsigned& count = refusals_[connection.id()];
  if (count == max_logged_refusals) return;
  ++count;
  const bool last = count == max_logged_refusals;
  events_.log(LogLevel::warning, last ? text + " (what this connection is refused from here on is not logged)" : text);
}

template <typename Task>
void Acceptor::answer(Connection& connection, std::uint64_t request, Task task) {
  try {
    task();
  } catch (const Error& error) {
    log_refusal(connection, fmt::format("refused member {}: {}", connection.peer().rank, error.what()));
    connection.send(wire::Failure{request, error.code(), error.what()});
  } catch (const std::exception& error) {  // out of memory or threads
    log_refusal(connection, fmt::format("could not serve member {}: {}", connection.peer().rank, error.what()));
    connection.send(wire::Failure{request, ErrorCode::out_of_resources, error.what()});
  }
}

void Acceptor::serve(Connection& connection, const wire::Message& message) {
  answer(connection, wire::request_of(message).value_or(0), [&] { events_.request(connection, message); });
}

}  // namespace shardwire
