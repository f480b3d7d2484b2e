// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "support/deadline.hpp"
#include "support/descriptors.hpp"

namespace shardwire::test {

inline sockaddr_in loopback_address(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

/// Errors: throws if nothing listens on the port.
inline support::Descriptor connection_to(std::uint16_t port) {
  support::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback_address(port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("connect");
  }
  return socket;
}

inline void send_text(const support::Descriptor& socket, const std::string& text) {
  static_cast<void>(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL));
}

/// All that comes before the end of the connection.
inline std::string rest_of(const support::Descriptor& socket) {
  const Deadline deadline(std::chrono::seconds(120));
  std::string all;
  std::array<char, 4096> buffer;
  for (ssize_t size = 0; (size = ::recv(socket.get(), buffer.data(), buffer.size(), 0)) > 0;) {
    all.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return all;
}

/// The answer of a server on the loopback interface to a request with this first line.
inline std::string http_answer(std::uint16_t port, const std::string& first_line) {
  const auto socket = connection_to(port);
  send_text(socket, first_line + "\r\nHost: here\r\n\r\n");
  return rest_of(socket);
}

inline std::string body_of(const std::string& answer) {
  return answer.substr(answer.find("\r\n\r\n") + 4);
}

}  // namespace shardwire::test
