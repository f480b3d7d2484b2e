// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shardwire/types.hpp"

// The sockets that a fabric is given.
namespace shardwire::transport::tcp {

/// Makes a socket fit for a stream: it never blocks, is not inherited by programs, and notices peers that fall silent.
/// Errors: throws Error{invalid_argument} for what is no connected stream socket.
void prepare(int socket);

struct Route {
  std::string carrier{};  ///< for people, e.g. "tcp 10.0.0.1 -> 10.0.0.2 (eth0)"
  bool on_host = false;   ///< a local socket: no network interface is passed
};
Route route_of(int socket);

/// Bytes that the kernel has not sent once; 0 where it cannot tell.
ByteCount unsent_bytes(int socket);
/// Closing it afterwards cuts the connection: what has not been sent is dropped.
void cut_on_close(int socket);

}  // namespace shardwire::transport::tcp
