// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "support/descriptors.hpp"

namespace shardwire::test {

/// A local stream socket that peers connect to by name, without a file. Unlike with a socket pair, the kernel tells
/// each end the other's process.
class LocalListener {
 public:
  LocalListener() : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t size = sizeof address.sun_family;  // the kernel chooses a name
    if (!socket_ || ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(socket_.get(), 16) != 0) {
      throw std::runtime_error("cannot listen on a local socket");
    }
    size = sizeof address;
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    name_.assign(address.sun_path, size - offsetof(sockaddr_un, sun_path));
  }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] support::Descriptor accept() const {
    support::Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) throw std::runtime_error("cannot accept on a local socket");
    return socket;
  }

 private:
  support::Descriptor socket_;
  std::string name_;
};

inline support::Descriptor connect_to_listener(const std::string& name) {
  support::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (!socket || ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    throw std::runtime_error("cannot connect to a local socket");
  }
  return socket;
}

}  // namespace shardwire::test
