// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "runtime/addresses.hpp"
#include "runtime/stream.hpp"
#include "runtime/uv_handle.hpp"
#include "runtime/uv_loop.hpp"
#include "support/descriptors.hpp"
#include "support/fork.hpp"

namespace shardwire {

/// Accepts connections at one address. While this process has no descriptor left, new connections are closed, or wait.
class SocketListener final : public Listener {
 public:
  SocketListener(UvLoop& loop, const SocketAddress& at, Sockets::Incoming incoming);
  SocketListener(UvLoop& loop, const std::string& local_name, Sockets::Incoming incoming);
  ~SocketListener() override;
  [[nodiscard]] const SocketAddress& address() const override { return address_; }

 private:
  static void remove_abandoned(const LocalAddress& address);
  void open(const sockaddr* address, unsigned length, const std::string& where);
  void watch();
  void start();
  void accept_waiting();
  void turn_away_waiting();

  UvLoop& loop_;
  SocketAddress address_;
  bool local_ = false;
  std::string path_;  // of a socket file that goes with this; empty: none
  support::OwningProcess owner_;
  Sockets::Incoming incoming_;
  support::Descriptor socket_;
  support::Descriptor spare_;  // freed to accept and close connections when no other descriptor is left
  HandleOwner<uv_poll_t> poll_;
  Timer retry_;
  std::optional<support::ClosedOnFork> closed_on_fork_;
};

}  // namespace shardwire
