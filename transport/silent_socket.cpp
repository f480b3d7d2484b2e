// SPDX-License-Identifier: Apache-2.0
#include "transport/silent_socket.hpp"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace shardwire::transport {

std::string why_not_silent(int socket) {
  std::array<std::byte, 64> bytes;
  // The kernel closes descriptors that arrive: the call provides no room for them.
  const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got == 0) return "the peer has closed its fabric or has ended";
  if (got > 0) return fmt::format("the peer has sent {} bytes where none are expected", got);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {};
  return fmt::format("the connection to the peer has failed: {}", std::strerror(errno));
}

}  // namespace shardwire::transport
