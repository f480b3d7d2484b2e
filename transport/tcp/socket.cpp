// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>

#include "shardwire/error.hpp"

namespace shardwire::transport::tcp {
namespace {

// As for control connections: the kernel drops a peer that acknowledges neither data nor keepalive probes for 30 s.
constexpr int unacknowledged_limit_ms = 30'000;
constexpr int keepalive_idle_s = 10;
constexpr int keepalive_interval_s = 5;
constexpr int keepalive_probes = 4;
// Within one host, data is under way only briefly. A larger kernel buffer would leave the caches before it is read.
// Over a network the kernel's own choice follows the round trips.
constexpr int buffer_bytes_on_host = 512 << 10;

void set(int socket, int level, int option, int value) {
  static_cast<void>(::setsockopt(socket, level, option, &value, sizeof value));  // a kernel that lacks it works without
}

/// One end's address. An IPv4 address is shown as such, even if it came through an IPv6 socket.
struct Host {
  int family = AF_UNSPEC;
  in6_addr address{};  // IPv4: in the first four bytes

  bool operator==(const Host& other) const {
    return family == other.family && std::memcmp(&address, &other.address, sizeof address) == 0;
  }
};

Host host_of(const sockaddr& from) {
  Host host{from.sa_family, {}};
  if (from.sa_family == AF_INET) {
    std::memcpy(&host.address, &reinterpret_cast<const sockaddr_in&>(from).sin_addr, sizeof(in_addr));
  } else if (from.sa_family == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
      host.family = AF_INET;
      std::memcpy(&host.address, address.s6_addr + 12, sizeof(in_addr));
    } else {
      host.address = address;
    }
  }
  return host;
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);
Host end_of(int socket, NameOf name_of) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (name_of(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return host_of(reinterpret_cast<const sockaddr&>(address));
}

std::string text_of(const Host& host) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (::inet_ntop(host.family, &host.address, text.data(), text.size()) == nullptr) return "?";
  return text.data();
}

std::string interface_of(const Host& host) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(found, ::freeifaddrs);
  for (const ifaddrs* entry = found; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && host_of(*entry->ifa_addr) == host) return entry->ifa_name;
  }
  return {};
}

}  // namespace

void prepare(int socket) {
  int type = 0;
  socklen_t length = sizeof type;
  if (::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM) {
    throw Error(ErrorCode::invalid_argument, "the tcp transport was given something that is no stream socket");
  }
  // A socket whose peer has already closed has no peer name; reading from it reports the end.
  int error = 0;
  length = sizeof error;
  sockaddr_storage peer{};
  socklen_t peer_length = sizeof peer;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0 &&
      (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error == 0)) {
    throw Error(ErrorCode::invalid_argument, "the tcp transport was given a socket that is not connected");
  }
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, keepalive_idle_s);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, keepalive_interval_s);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, keepalive_probes);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, unacknowledged_limit_ms);
  const Host here = end_of(socket, ::getsockname);
  if (here.family != AF_UNSPEC && here == end_of(socket, ::getpeername)) {
    set(socket, SOL_SOCKET, SO_SNDBUF, buffer_bytes_on_host);
    set(socket, SOL_SOCKET, SO_RCVBUF, buffer_bytes_on_host);
  }
}

Route route_of(int socket) {
  const Host here = end_of(socket, ::getsockname);
  const Host there = end_of(socket, ::getpeername);
  if (here.family == AF_UNIX) return {"tcp's streams over local sockets", true};
  const std::string interface = interface_of(here);
  return {fmt::format("tcp {} -> {}{}", text_of(here), text_of(there),
                      interface.empty() ? "" : fmt::format(" ({})", interface)),
          false};
}

ByteCount unsent_bytes(int socket) {
  int bytes = 0;
  return ::ioctl(socket, SIOCOUTQNSD, &bytes) == 0 && bytes > 0 ? static_cast<ByteCount>(bytes) : 0;
}

void reset_on_close(int socket) {
  const linger none{.l_onoff = 1, .l_linger = 0};
  static_cast<void>(::setsockopt(socket, SOL_SOCKET, SO_LINGER, &none, sizeof none));
}

}  // namespace shardwire::transport::tcp
