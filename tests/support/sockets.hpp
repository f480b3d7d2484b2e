// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <vector>

#include "support/descriptors.hpp"

namespace shardwire::test {

using SocketEnds = std::array<support::Descriptor, 2>;

inline SocketEnds local_sockets() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) throw std::runtime_error("socketpair");
  return {support::Descriptor(ends[0]), support::Descriptor(ends[1])};
}

/// Two ends of a TCP connection over 127.0.0.1 or ::1. Empty if there is no such address.
inline std::optional<SocketEnds> tcp_sockets(int family = AF_INET) {
  sockaddr_storage address{};
  if (family == AF_INET) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address);
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
  }
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  const support::Descriptor listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener || ::bind(listener.get(), raw, length) != 0) return std::nullopt;
  if (::listen(listener.get(), 1) != 0) throw std::runtime_error("listen");
  ::getsockname(listener.get(), raw, &length);
  SocketEnds ends;
  ends[0].reset(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(ends[0].get(), raw, length) != 0) throw std::runtime_error("connect");
  ends[1].reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!ends[1]) throw std::runtime_error("accept");
  return ends;
}

}  // namespace shardwire::test
