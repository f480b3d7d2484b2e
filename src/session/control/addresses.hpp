// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace shardwire {

struct SocketAddress {
  std::string host;  ///< numeric
  std::uint16_t port = 0;
};

/// For the system's calls. Errors: throws Error{invalid_argument} for a host that is not numeric.
sockaddr_storage socket_address(const SocketAddress& from);
/// Numeric form of its host.
std::string host_of(const sockaddr_storage& address);

/// Name of the network interface that has this address; empty when there is none.
std::string interface_of(const std::string& address);
/// Whether the address, numeric, is of this host only.
bool is_loopback(const std::string& address);

/// Numeric form of a host name or of the address of a network interface. Blocking. Errors: throws Error{invalid_argument}.
std::string resolve(const std::string& host);
std::string interface_address(const std::string& interface_or_address);

}  // namespace shardwire
