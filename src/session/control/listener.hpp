// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "session/control/addresses.hpp"
#include "session/control/loop.hpp"
#include "shardwire/error.hpp"
#include "support/descriptors.hpp"
#include "support/fork.hpp"

namespace shardwire {

/// Somebody else listens there.
class PortTaken : public Error {
 public:
  using Error::Error;
};

/// Accepts control connections on one address. While this process has no descriptor left, who comes is closed, or waits.
/// Threads: loop thread only.
class Listener {
 public:
  using Incoming = std::function<void(support::Descriptor socket)>;

  /// `port` 0: any free one. Errors: throws PortTaken, Error{invalid_argument} when the address is not ours.
  Listener(Loop& loop, const SocketAddress& at, Incoming incoming);
  /// On a name in this network namespace (unix(7), abstract), for processes of this host only.
  /// Errors: throws PortTaken, Error{out_of_resources}.
  Listener(Loop& loop, const std::string& local_name, Incoming incoming);
  /// Not of one on a local name.
  [[nodiscard]] const SocketAddress& address() const { return address_; }

 private:
  void open(const sockaddr* address, unsigned length, const std::string& where);
  void watch(Loop& loop);
  void start();
  void accept_waiting();
  void turn_away_waiting();

  SocketAddress address_;
  Incoming incoming_;
  support::Descriptor socket_;
  support::Descriptor spare_;  // given up to accept, and close, those who come when there is no other
  HandleOwner<uv_poll_t> poll_;
  Timer retry_;
  std::optional<support::ClosedOnFork> closed_on_fork_;
};

}  // namespace shardwire
