// SPDX-License-Identifier: Apache-2.0
#include "cli/local_rendezvous.hpp"

#include <arpa/inet.h>
#include <sodium.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shardwire/error.hpp"
#include "support/system_error.hpp"

namespace shardwire::cli {
namespace {

Bytes random_key() {
  if (sodium_init() < 0) throw Error(ErrorCode::internal, "libsodium does not initialise");
  Bytes key(32);
  randombytes_buf(key.data(), key.size());
  return key;
}

}  // namespace

LocalRendezvous::LocalRendezvous() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), key_(random_key()) {
  if (socket_ < 0) support::throw_errno("socket");
  const int on = 1;
  ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket_, any, size) != 0 || ::getsockname(socket_, any, &size) != 0)
    support::throw_errno("bind to 127.0.0.1");
  port_ = ntohs(address.sin_port);
}

LocalRendezvous::~LocalRendezvous() {
  ::close(socket_);
}

Bootstrap LocalRendezvous::bootstrap(int members) const {
  Bootstrap bootstrap;
  bootstrap.world_size = members;
  bootstrap.port = port_;
  bootstrap.job_key = key_;
  return bootstrap;
}

}  // namespace shardwire::cli
