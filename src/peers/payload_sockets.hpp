// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "control/connection.hpp"
#include "transport/transport.hpp"

// Sockets for a fabric's payload. The reader opens them to the source's control listener, so that a firewall has to
// open one port. Each goes through the whole handshake, is attached under a token, and leaves the control plane on both
// sides.
namespace shardwire {

/// The reader's half: the sockets of one token.
/// Threads: loop thread only.
class OpeningSockets {
 public:
  /// Receives all sockets, in the order of their indexes, or the reason for failure. Runs once, in a later loop
  /// iteration.
  using Done = std::function<void(std::vector<transport::OpenSocket>, const Error* why_not)>;

  /// `to`: the process that has to answer, by incarnation. Errors: throws Error{out_of_resources}.
  OpeningSockets(Loop& loop, const wire::MemberRecord& to, const transport::SocketNeeds& wanted, std::uint64_t token,
                 const Identity& identity, Done done);
  ~OpeningSockets();
  OpeningSockets(const OpeningSockets&) = delete;
  OpeningSockets& operator=(const OpeningSockets&) = delete;

 private:
  void attach(std::size_t index, std::uint64_t token, Connection& connection);
  void attached(std::size_t index, Connection& connection);
  void fail(const Error& why);

  std::vector<std::shared_ptr<Connection>> connections_;  // owners: this and their own callbacks; null once attached
  std::vector<transport::OpenSocket> sockets_;
  std::size_t missing_;
  bool must_be_encrypted_;
  Done done_;
};

/// The source's half: sockets attached by readers, until their Bind arrives.
/// Threads: loop thread only.
class AttachedSockets {
 public:
  /// A reader binds as soon as it has its sockets; sockets that wait longer than `limit` are closed.
  explicit AttachedSockets(Clock& clock, std::chrono::nanoseconds limit = std::chrono::seconds(15))
      : clock_(clock), limit_(limit), timer_(clock) {}

  /// Errors: throws Error{invalid_argument} for an index that was attached before or is out of range,
  ///         Error{out_of_resources} if too many sockets wait.
  void check(const wire::Hello& reader, const wire::Attach& attach);
  /// Requires: check() has accepted it.
  void add(const wire::Hello& reader, const wire::Attach& attach, transport::OpenSocket socket);
  /// All sockets of one token, in the order of their indexes; none if some are missing.
  std::vector<transport::OpenSocket> take(const wire::Hello& reader, std::uint64_t token);

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // incarnation, token
  struct Waiting {
    Clock::Time since;
    std::map<std::uint8_t, transport::OpenSocket> sockets;  // by index
  };
  void close_old();

  std::map<Key, Waiting> waiting_;
  std::size_t count_ = 0;     // of sockets
  Clock::Time next_close_{};  // nothing is too old before
  Clock& clock_;
  std::chrono::nanoseconds limit_;
  Timer timer_;
};

}  // namespace shardwire
