// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardwire {

struct SocketAddress {
  std::string host;  ///< numeric
  std::uint16_t port = 0;
  bool operator==(const SocketAddress&) const = default;
};

/// For system calls. Errors: throws Error{invalid_argument} if the host is not numeric.
sockaddr_storage socket_address(const SocketAddress& from);
/// Numeric host of an address.
std::string host_of(const sockaddr_storage& address);

/// The path of a local socket (unix(7)) if it begins with '/', else a name in the abstract namespace, of which each network
/// namespace has its own; without the leading zero byte.
class LocalAddress {
 public:
  /// Errors: throws Error{invalid_argument} for a name that is empty or longer than 107 characters.
  explicit LocalAddress(const std::string& name);
  [[nodiscard]] bool is_path() const { return address_.sun_path[0] != '\0'; }
  [[nodiscard]] const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address_); }
  [[nodiscard]] unsigned length() const { return length_; }

 private:
  sockaddr_un address_{};
  unsigned length_ = 0;
};

/// Name of the network interface that has this address; empty if there is none.
std::string interface_of(const std::string& address);
/// Whether the numeric address is a loopback address.
bool is_loopback(const std::string& address);

/// Numeric form of a host name or of the address of a network interface. Blocking. Errors: throws
/// Error{invalid_argument}, resolve() also Error{timed_out} for a name that nothing knows, or not yet.
std::string resolve(const std::string& host);
std::string interface_address(const std::string& interface_or_address);
/// Addresses of this host that others may reach, IPv4 first; loopback addresses if there are no others.
std::vector<std::string> reachable_addresses();

}  // namespace shardwire
