// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "conformance/pair.hpp"
#include "support/child.hpp"
#include "support/descriptor_messages.hpp"

// What a test and the process it has started tell each other over the socket between them.
namespace shardwire::test {

struct ToldKey {
  Bytes bytes;
  std::vector<support::Descriptor> descriptors;
  /// Once.
  [[nodiscard]] transport::RegionKey key() { return {bytes, std::move(descriptors)}; }
};

inline void tell_key(int socket, const transport::Region& region) {
  write_frame(socket, region.key());
  const std::array<std::byte, 1> one{};
  support::send_with_descriptors(socket, one, region.descriptors());
}
inline ToldKey read_key(int socket) {
  ToldKey told{.bytes = read_frame(socket), .descriptors = {}};
  std::array<std::byte, 1> one{};
  auto message = support::receive_with_descriptors(socket, one, transport::max_key_descriptors);
  if (message.bytes != 1) throw std::runtime_error("no descriptors of a key");
  told.descriptors = std::move(message.descriptors);
  return told;
}

/// Sockets between fabrics of two processes: the test listens, and the other one connects.
inline std::vector<support::Descriptor> accept_sockets(int control, const transport::Fabric& fabric) {
  std::vector<support::Descriptor> sockets;
  if (fabric.sockets().count == 0) return sockets;
  const LocalListener listener;
  write_frame(control, text(listener.name()));
  for (int i = 0; i < fabric.sockets().count; ++i) sockets.push_back(listener.accept());
  return sockets;
}
inline std::vector<support::Descriptor> connect_sockets(int control, const transport::Fabric& fabric) {
  std::vector<support::Descriptor> sockets;
  if (fabric.sockets().count == 0) return sockets;
  const Bytes name = read_frame(control);
  const std::string text(reinterpret_cast<const char*>(name.data()), name.size());
  for (int i = 0; i < fabric.sockets().count; ++i) sockets.push_back(connect_to_listener(text));
  return sockets;
}

}  // namespace shardwire::test
