// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include <array>
#include <boost/test/tools/assertion_result.hpp>
#include <boost/test/tree/decorator.hpp>
#include <cstdlib>
#include <cstring>

#include "support/bytes.hpp"
#include "support/deadline.hpp"
#include "support/encrypted.hpp"
#include "support/sockets.hpp"
#include "transport/transport.hpp"

namespace shardwire::test {

using namespace std::chrono_literals;

/// The transport under test.
inline std::string fabric_under_test() {
  const char* name = std::getenv("SHARDWIRE_TEST_TRANSPORT");
  return name == nullptr ? "loopback" : name;
}
inline std::unique_ptr<transport::Fabric> open_fabric() {
  return transport::choose(fabric_under_test()).open();
}

/// Connected sockets for two fabrics, one list of ends each; empty for fabrics that use no sockets.
struct SocketsBetween {
  std::vector<transport::OpenSocket> here;
  std::vector<transport::OpenSocket> there;
};
inline SocketsBetween make_sockets(const transport::SocketNeeds& wanted) {
  SocketsBetween all;
  for (int i = 0; i < wanted.count; ++i) {
    SocketEnds ends = wanted.kind == transport::SocketNeeds::Kind::local ? local_sockets() : *tcp_sockets();
    all.here.push_back(std::move(ends[0]));
    all.there.push_back(std::move(ends[1]));
    if (std::getenv("SHARDWIRE_TEST_ENCRYPTED") == nullptr) continue;
    auto encrypted = encrypted_ends();
    all.here.back().encryption = std::move(encrypted[0]);
    all.there.back().encryption = std::move(encrypted[1]);
  }
  return all;
}

using EndpointOwner = std::unique_ptr<transport::Endpoint>;
/// Creates an endpoint of `from` to `to` and one back, since a fabric on sockets receives only over its endpoints.
inline void connect_both(transport::Fabric& from, EndpointOwner& to_there, transport::Fabric& to,
                         EndpointOwner& to_here) {
  SocketsBetween sockets = make_sockets(from.sockets());
  to_there = from.connect({.address = to.address(), .same_host = true, .sockets = std::move(sockets.here)});
  to_here = to.connect({.address = from.address(), .same_host = true, .sockets = std::move(sockets.there)});
}
/// Replaces an endpoint. The endpoint back, if any, is replaced only if sockets demand it.
inline EndpointOwner connect_anew(transport::Fabric& from, transport::Fabric& to, EndpointOwner& to_here,
                                  bool same_host = true) {
  SocketsBetween sockets = make_sockets(from.sockets());
  EndpointOwner made =
      from.connect({.address = to.address(), .same_host = same_host, .sockets = std::move(sockets.here)});
  if (from.sockets().count == 0) return made;
  to_here = to.connect({.address = from.address(), .same_host = same_host, .sockets = std::move(sockets.there)});
  return made;
}

inline Bytes text(std::string_view value) {
  const auto bytes = std::as_bytes(std::span(value));
  return {bytes.begin(), bytes.end()};
}

/// The outcome of an operation, once it has ended.
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

/// Sends one range of host memory as a message.
inline void send(transport::Endpoint& endpoint, transport::ByteView header, transport::ByteView payload,
                 transport::Completion done) {
  endpoint.send(header, transport::host_memory(payload), std::move(done));
}
/// Reads into one range of host memory.
inline void read(transport::Endpoint& endpoint, const transport::RemoteRegion& region, ByteCount offset_bytes,
                 std::span<std::byte> into, transport::Completion done) {
  const transport::ReadRange range{offset_bytes, transport::host_memory(into)};
  endpoint.read(region, std::span(&range, 1), std::move(done));
}

/// Receives every message into its own memory.
struct Mailbox {
  struct Message {
    Bytes header;
    Bytes payload;
    bool is_copied = false;
    Result result;
  };
  void attach(transport::Fabric& fabric) {
    fabric.on_message([this](transport::Incoming& incoming) {
      auto& message = *messages.emplace_back(std::make_unique<Message>());
      message.header.assign(incoming.header().begin(), incoming.header().end());
      message.payload.resize(incoming.payload_bytes());
      message.is_copied = incoming.is_copied();
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

/// A region's key with its own descriptors, for a peer in this process.
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

/// Two fabrics on one thread, connected in both directions.
struct Pair {
  Mailbox left_mail;
  Mailbox right_mail;
  std::unique_ptr<transport::Fabric> left = open_fabric();
  std::unique_ptr<transport::Fabric> right = open_fabric();
  EndpointOwner to_right;
  EndpointOwner to_left;

  Pair() {
    connect_both(*left, to_right, *right, to_left);
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

/// Preconditions of cases about optional capabilities of a path.
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
inline boost::test_tools::assertion_result peers_are_read_alone(boost::unit_test::test_unit_id /*case*/) {
  static const transport::Path path = Pair().to_right->path({});
  boost::test_tools::assertion_result result(path.read && !path.reads_need_peer);
  if (!result) result.message() << "this path has no reads without the peer's processor";
  return result;
}

}  // namespace shardwire::test
