// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "session/control/connection.hpp"
#include "transport/transport.hpp"

// Sockets that a fabric lives on. The reader opens them to the source's control listener, so that a firewall has one port to
// know; each goes through the whole handshake, is attached under a token, and leaves the control plane on both sides.
namespace shardwire {

/// The reader's half: the sockets of one token.
/// Threads: loop thread only.
class OpeningSockets {
 public:
  /// All of them, in the order of their indexes; or why not. Runs once, on a later turn of the loop.
  using Done = std::function<void(std::vector<support::Descriptor>, const Error* why_not)>;

  /// `to`: whose incarnation has to answer. Errors: throws Error{out_of_resources}.
  OpeningSockets(Loop& loop, const wire::MemberRecord& to, const transport::Sockets& wanted, std::uint64_t token,
                 const Identity& identity, Done done);
  ~OpeningSockets();
  OpeningSockets(const OpeningSockets&) = delete;
  OpeningSockets& operator=(const OpeningSockets&) = delete;

 private:
  void attached(std::size_t index, Connection& connection);
  void fail(const Error& why);

  std::vector<std::shared_ptr<Connection>> connections_;  // owners: this and their own callbacks; null once attached
  std::vector<support::Descriptor> sockets_;
  std::size_t missing_;
  Done done_;
};

/// The source's half: sockets that readers have attached, until their Bind comes.
/// Threads: loop thread only.
class AttachedSockets {
 public:
  /// A reader that has its sockets binds at once: what waits longer than `limit` is closed.
  explicit AttachedSockets(Loop& loop, std::chrono::nanoseconds limit = std::chrono::seconds(15))
      : limit_(limit), timer_(loop) {}

  /// Errors: throws Error{invalid_argument} for an index that was attached before or is out of range,
  ///         Error{out_of_resources} when too many wait.
  void check(const wire::Hello& reader, const wire::Attach& attach);
  /// Requires: check() has let it pass.
  void add(const wire::Hello& reader, const wire::Attach& attach, support::Descriptor socket);
  /// All of one token, in the order of their indexes; none when there are gaps.
  std::vector<support::Descriptor> take(const wire::Hello& reader, std::uint64_t token);

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // incarnation, token
  struct Waiting {
    Clock::time_point since;
    std::map<std::uint8_t, support::Descriptor> sockets;  // by index
  };
  void close_old();

  std::map<Key, Waiting> waiting_;
  std::size_t count_ = 0;  // of sockets
  std::chrono::nanoseconds limit_;
  Timer timer_;
};

}  // namespace shardwire
