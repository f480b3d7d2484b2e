// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "control/connection.hpp"
#include "control/membership.hpp"
#include "control/unproven.hpp"
#include "runtime/loop.hpp"
#include "shardwire/options.hpp"
#include "telemetry/metrics.hpp"
#include "transport/transport.hpp"

namespace shardwire {

/// Why this process refused a hello, or the proof after it, with this code. Empty: the connection ended for another reason.
std::optional<telemetry::Rejection> rejection_of(const Identity& own, const wire::Hello& hello, ErrorCode code);

/// Accepts connections from other members: listens, bounds the number of unproven ones, and passes their requests to
/// the session.
/// Threads: loop thread only.
class Acceptor final : public Membership::Clients {
 public:
  struct Events {
    /// Handles a request. An exception becomes its error reply.
    std::function<void(Connection&, const wire::Message&)> request;
    std::function<void(const Connection&, bool orderly)> closed;
    std::function<void(LogLevel, const std::string&)> log;
    std::function<void(telemetry::Rejection)> rejected;  ///< a connection was closed before its proof
  };
  struct Setup {
    int member = 0;
    int world_size = 0;
    bool needs_local_sockets = false;  ///< set if some fabric uses them
  };

  /// Ownership: borrows loop and identity.
  Acceptor(Loop& loop, const Identity& identity, const Setup& setup, Events events);
  ~Acceptor() override;

  /// Hands over the socket: nothing more is read from it here.
  transport::OpenSocket release(Connection& connection);
  /// Sends an orderly goodbye on every connection.
  void leave();

  std::uint16_t listen(const SocketAddress& at) override;
  std::string listen_locally() override;
  void send_to(Rendezvous::ClientId client, const Bytes& encoded) override;
  void notify(Rendezvous::ClientId client, const Bytes& encoded) override;
  void check_alive(Rendezvous::ClientId client, Connection::Verdict verdict) override;
  void dismiss(Rendezvous::ClientId client, const Error& why) override;
  void serve_later(Rendezvous::ClientId client, const std::function<void()>& task) override;

 private:
  void accept(const AcceptedStream& open);
  void closed(Connection& connection, const Error& reason, bool orderly);
  void make_room();
  void drop_unproven(Unproven::Id id);
  void serve(Connection& connection, const wire::Message& message);
  void warn_of_stranger(const std::string& address, telemetry::Rejection why);
  void log_refusal(const Connection& connection, const std::string& text);
  /// Runs `task` for a member. An exception becomes the reply to `request`.
  template <typename Task>
  void answer(Connection& connection, std::uint64_t request, Task task);

  Loop& loop_;
  const Identity& identity_;
  Setup setup_;
  Events events_;
  std::map<std::string, std::unique_ptr<Listener>> listeners_;     // by address of this host
  std::unique_ptr<Listener> local_listener_;                       // null if no fabric needs local sockets
  std::map<std::uint64_t, std::shared_ptr<Connection>> accepted_;  // owners: this table and requests in flight
  Unproven unproven_;                                              // of accepted_
  std::map<std::uint64_t, unsigned> refusals_;                     // of accepted_: number of logged refusals
  std::set<std::string> strangers_;                                // addresses of refused processes
};

}  // namespace shardwire
