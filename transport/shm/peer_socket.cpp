// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "transport/shm/handles.hpp"

namespace shardwire::transport::shm {
namespace {

int socket_option(int descriptor, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(descriptor, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

PeerProcess peer_of(int descriptor) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  const bool local = socket_option(descriptor, SO_DOMAIN) == AF_UNIX;
  if (!local || socket_option(descriptor, SO_TYPE) != SOCK_STREAM ||
      ::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 ||
      credentials.uid == static_cast<uid_t>(-1)) {  // not connected
    throw Error(ErrorCode::unsupported, "the shm transport needs a connected local stream socket to its peer");
  }
  return {credentials.pid, credentials.uid};
}

}  // namespace

PeerSocket::PeerSocket(support::Descriptor socket) : socket_(std::move(socket)), peer_(peer_of(socket_.get())) {
}

std::string PeerSocket::why_failed() const {
  std::array<std::byte, 64> bytes;
  // Descriptors that come along are closed by the kernel: there is no room for them.
  const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got == 0) return "the peer has closed its fabric or has ended";
  if (got > 0) return fmt::format("the peer has sent {} bytes where none are expected", got);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {};
  return fmt::format("the connection to the peer has failed: {}", std::strerror(errno));
}

}  // namespace shardwire::transport::shm
