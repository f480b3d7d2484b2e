// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include <array>
#include <boost/test/tools/assertion_result.hpp>
#include <boost/test/tree/decorator.hpp>
#include <cstdlib>
#include <cstring>

#include "support/deadline.hpp"
#include "support/local_socket.hpp"
#include "transport/transport.hpp"

namespace shardwire::test {

using namespace std::chrono_literals;

/// The transport that this run is about.
inline std::string transport_under_test() {
  const char* name = std::getenv("SHARDWIRE_TEST_TRANSPORT");
  return name == nullptr ? "loopback" : name;
}
inline std::unique_ptr<transport::Fabric> open_fabric() {
  return transport::choose(transport_under_test()).open();
}

/// Bytes that differ by place and by seed.
inline Bytes pattern(std::size_t size, std::uint64_t seed = 1) {
  Bytes out(size);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (std::size_t i = 0; i < size; i += sizeof state) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::memcpy(out.data() + i, &state, std::min(sizeof state, size - i));
  }
  return out;
}

inline Bytes text(std::string_view value) {
  const auto bytes = std::as_bytes(std::span(value));
  return {bytes.begin(), bytes.end()};
}

/// How an operation ended, once it has.
struct Result {
  bool done = false;
  transport::Outcome outcome;
  [[nodiscard]] transport::Completion completion() {
    return [this](const transport::Outcome& how) {
      done = true;
      outcome = how;
    };
  }
  [[nodiscard]] bool succeeded() const { return done && !outcome; }
};

/// One range of host memory as a message.
inline void send(transport::Endpoint& endpoint, transport::ByteView header, transport::ByteView payload,
                 transport::Completion done) {
  endpoint.send(header, transport::host_memory(payload), std::move(done));
}
/// One range of host memory read.
inline void read(transport::Endpoint& endpoint, const transport::RemoteRegion& region, ByteCount offset_bytes,
                 std::span<std::byte> into, transport::Completion done) {
  const transport::ReadRange range{offset_bytes, transport::host_memory(into)};
  endpoint.read(region, std::span(&range, 1), std::move(done));
}

/// Receives every message into memory of its own.
struct Mailbox {
  struct Message {
    Bytes header;
    Bytes payload;
    Result result;
  };
  void attach(transport::Fabric& fabric) {
    fabric.on_message([this](transport::Incoming& incoming) {
      auto& message = *messages.emplace_back(std::make_unique<Message>());
      message.header.assign(incoming.header().begin(), incoming.header().end());
      message.payload.resize(incoming.payload_bytes());
      incoming.receive(transport::host_memory(message.payload), message.result.completion());
    });
  }
  [[nodiscard]] std::size_t complete() const {
    std::size_t count = 0;
    for (const auto& message : messages) count += message->result.done ? 1 : 0;
    return count;
  }
  std::vector<std::unique_ptr<Message>> messages;
};

/// What a peer of this process is given of a region: descriptors of its own.
inline transport::RegionKey export_key(const transport::Region& region, transport::ByteView key) {
  transport::RegionKey out{key};
  for (const int descriptor : region.descriptors()) {
    out.descriptors.emplace_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  }
  return out;
}
inline std::unique_ptr<transport::RemoteRegion> import_region(transport::Endpoint& endpoint,
                                                              const transport::Region& region, ByteCount size_bytes) {
  const Bytes key = region.key();
  return endpoint.import_region(export_key(region, key), size_bytes);
}

/// Both ends of the sockets that endpoints between two fabrics of this process live on.
inline std::array<std::vector<support::Descriptor>, 2> connected_sockets(const transport::Fabric& fabric) {
  std::array<std::vector<support::Descriptor>, 2> out;
  const transport::Sockets wanted = fabric.sockets();
  if (wanted.kind == transport::Sockets::Kind::none) return out;
  for (int i = 0; i < wanted.count; ++i) {
    auto ends = local_socket_pair();
    out[0].push_back(std::move(ends[0]));
    out[1].push_back(std::move(ends[1]));
  }
  return out;
}

/// Endpoints of two fabrics to each other: that of the first, that of the second.
inline std::array<std::unique_ptr<transport::Endpoint>, 2> connect_both(transport::Fabric& left,
                                                                        transport::Fabric& right) {
  auto sockets = connected_sockets(left);
  std::array<std::unique_ptr<transport::Endpoint>, 2> out;
  out[0] = left.connect({.address = right.address(), .same_host = true, .sockets = std::move(sockets[0])});
  out[1] = right.connect({.address = left.address(), .same_host = true, .sockets = std::move(sockets[1])});
  return out;
}

/// Two fabrics of one thread, connected both ways.
struct Pair {
  Mailbox left_mail;
  Mailbox right_mail;
  std::unique_ptr<transport::Fabric> left = open_fabric();
  std::unique_ptr<transport::Fabric> right = open_fabric();
  std::unique_ptr<transport::Endpoint> to_right;
  std::unique_ptr<transport::Endpoint> to_left;

  Pair() {
    auto endpoints = connect_both(*left, *right);
    to_right = std::move(endpoints[0]);
    to_left = std::move(endpoints[1]);
    left_mail.attach(*left);
    right_mail.attach(*right);
  }
  void step() const {
    if (left) left->progress();
    if (right) right->progress();
  }
  template <typename Met>
  bool until(Met met, std::chrono::milliseconds at_most = 20s) {
    return run_until([this] { step(); }, met, at_most);
  }
};

/// Preconditions of cases about what a path need not be able to do.
inline boost::test_tools::assertion_result paths_have_messages(boost::unit_test::test_unit_id /*case*/) {
  static const bool able = Pair().to_right->path({}).message;
  boost::test_tools::assertion_result result(able);
  if (!able) result.message() << "this path has no messages";
  return result;
}
inline boost::test_tools::assertion_result paths_read(boost::unit_test::test_unit_id /*case*/) {
  static const bool able = Pair().to_right->path({}).read;
  boost::test_tools::assertion_result result(able);
  if (!able) result.message() << "this path has no one-sided reads";
  return result;
}

}  // namespace shardwire::test
