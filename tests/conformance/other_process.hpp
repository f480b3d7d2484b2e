// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "conformance/pair.hpp"
#include "support/child.hpp"
#include "support/descriptor_messages.hpp"
#include "support/local_socket.hpp"

// Messages between a test and its other process over their socket.
namespace shardwire::test {

struct ReceivedKey {
  Bytes bytes;
  std::vector<support::Descriptor> descriptors;
  /// The key; call it once.
  [[nodiscard]] transport::RegionKey key() { return {bytes, std::move(descriptors)}; }
};

inline void send_key(int socket, const transport::Region& region) {
  write_frame(socket, region.key());
  const std::array<std::byte, 1> one{};
  support::send_with_descriptors(socket, one, region.descriptors());
}
inline ReceivedKey read_key(int socket) {
  ReceivedKey told{.bytes = read_frame(socket), .descriptors = {}};
  std::array<std::byte, 1> one{};
  auto message = support::receive_with_descriptors(socket, one, transport::max_key_descriptors);
  if (message.bytes != 1) throw std::runtime_error("no descriptors of a key");
  told.descriptors = std::move(message.descriptors);
  return told;
}

/// Sockets between fabrics of two processes. For local ones, the test listens and the other process connects, so that
/// the kernel tells each the other end's process; other sockets are created here and passed on.
inline std::vector<transport::OpenSocket> accept_sockets(int control, const transport::Fabric& fabric) {
  const transport::SocketNeeds wanted = fabric.sockets();
  if (wanted.kind == transport::SocketNeeds::Kind::network) {
    SocketsBetween made = make_sockets(wanted);
    std::vector<int> numbers;
    for (const auto& one : made.there) numbers.push_back(one.descriptor.get());
    const std::array<std::byte, 1> one{};
    support::send_with_descriptors(control, one, numbers);
    return std::move(made.here);
  }
  std::vector<transport::OpenSocket> sockets;
  if (wanted.count == 0) return sockets;
  const LocalListener listener;
  write_frame(control, text(listener.name()));
  for (int i = 0; i < wanted.count; ++i) sockets.push_back(listener.accept());
  return sockets;
}
inline std::vector<transport::OpenSocket> connect_sockets(int control, const transport::Fabric& fabric) {
  const transport::SocketNeeds wanted = fabric.sockets();
  const auto count = static_cast<std::size_t>(wanted.count);
  if (wanted.kind == transport::SocketNeeds::Kind::network) {
    std::array<std::byte, 1> one{};
    auto message = support::receive_with_descriptors(control, one, count);
    if (message.descriptors.size() != count) throw std::runtime_error("no sockets have come");
    return {std::make_move_iterator(message.descriptors.begin()), std::make_move_iterator(message.descriptors.end())};
  }
  std::vector<transport::OpenSocket> sockets;
  if (count == 0) return sockets;
  const Bytes name = read_frame(control);
  const std::string listener(reinterpret_cast<const char*>(name.data()), name.size());
  for (std::size_t i = 0; i < count; ++i) sockets.push_back(connect_to_listener(listener));
  return sockets;
}

}  // namespace shardwire::test
