// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <utility>

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

}  // namespace shardwire::transport::shm
