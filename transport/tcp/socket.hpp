// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shardwire/types.hpp"

// The sockets given to a fabric.
namespace shardwire::transport::tcp {

/// Prepares a socket for a stream: non-blocking, close-on-exec, and with detection of silent peers.
/// Errors: throws Error{invalid_argument} unless it is a connected stream socket.
void prepare(int socket);

struct Route {
  std::string carrier{};  ///< for people, e.g. "tcp 10.0.0.1 -> 10.0.0.2 (eth0)"
  bool on_host = false;   ///< a local socket: bytes pass no network interface
};
Route route_of(int socket);

/// Bytes that the kernel has not yet sent for the first time; 0 if it cannot tell.
ByteCount unsent_bytes(int socket);
/// Makes close() reset the connection: unsent data is dropped.
void reset_on_close(int socket);

}  // namespace shardwire::transport::tcp
