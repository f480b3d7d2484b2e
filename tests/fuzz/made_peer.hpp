// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/connection.hpp"
#include "fuzz/made_loop.hpp"
#include "fuzz/target.hpp"

// One control connection, with the target as its peer.
namespace shardwire::fuzz {

inline Bytes key_of_job() {
  return Bytes(16, std::byte{'k'});
}
inline Identity identity_of(std::int32_t rank) {
  return {.hello = {.capabilities = {"a"},
                    .rank = rank,
                    .world_size = 4,
                    .incarnation = 9,
                    .host = "host",
                    .run_id = "run",
                    .fabrics = {{"tcp", "tcp protocol 1"}}},
          .job_key = key_of_job()};
}
/// The hello that the connection sends, nonce included, and the one of an honest peer.
inline wire::Hello own_hello() {
  wire::Hello hello = identity_of(0).hello;
  hello.nonce.fill(std::byte{7});
  return hello;
}
inline wire::Hello peer_hello() {
  wire::Hello hello = identity_of(1).hello;
  hello.nonce.fill(std::byte{8});
  return hello;
}
/// The proof of a peer that has sent `hello`. `initiator`: the connection began, not the peer.
inline wire::Proof proof_of(const wire::Hello& hello, bool initiator) {
  return initiator ? wire::prove(key_of_job(), false, own_hello(), hello)
                   : wire::prove(key_of_job(), true, hello, own_hello());
}
inline Bytes frame_of(const wire::Message& message) {
  const Bytes encoded = wire::encode(message);
  Bytes frame(sizeof(std::uint64_t) + encoded.size());
  const std::uint64_t length = encoded.size();
  std::memcpy(frame.data(), &length, sizeof length);
  std::ranges::copy(encoded, frame.begin() + sizeof length);
  return frame;
}

/// The first frame of `bytes`, which it loses; empty: there is no whole frame, or one longer than `max_bytes`.
inline std::optional<Input> take_frame(Input& bytes, std::size_t max_bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > max_bytes || length > bytes.size() - sizeof length) return std::nullopt;
  const Input frame = bytes.subspan(sizeof length, static_cast<std::size_t>(length));
  bytes = bytes.subspan(sizeof length + frame.size());
  return frame;
}

/// Whole frames, one after the other.
inline std::vector<wire::Message> messages_in(Input bytes) {
  std::vector<wire::Message> messages;
  while (const auto frame = take_frame(bytes, wire::max_message_bytes)) messages.push_back(wire::decode(*frame));
  require(bytes.empty(), "a connection sends whole frames");
  return messages;
}

/// The actions of a connection on the bytes of a peer.
struct Record {
  bool ready = false;
  std::vector<wire::Message> messages;  ///< that it passed on
  std::optional<ErrorCode> closed;
  std::string reason;
  bool orderly = false;
  std::vector<wire::Message> sent;
  bool operator==(const Record&) const = default;
};

/// Sends `bytes` in pieces of `piece` bytes, 0: as a whole, then ends the stream or, if `silent`, waits.
inline Record conversation(Input bytes, bool initiator, std::size_t piece, bool silent) {
  Record record;
  MadeLoop loop;
  Connection::Events events;
  events.ready = [&](Connection&) {
    require(!record.ready && !record.closed, "a connection becomes ready once");
    record.ready = true;
  };
  events.message = [&](Connection&, wire::Message& message) {
    require(record.ready && !record.closed, "messages follow a handshake");
    record.messages.push_back(message);
  };
  events.closed = [&](Connection&, const Error& error, bool orderly) {
    require(!record.closed, "a connection ends once");
    record.closed = error.code();
    record.reason = error.what();
    record.orderly = orderly;
  };
  std::shared_ptr<MadeStream> stream;
  std::shared_ptr<Connection> connection;
  if (initiator) {
    connection = Connection::connect(loop, {"192.0.2.2", 1}, identity_of(0), std::move(events));
    stream = loop.stream;
    stream->establish();
  } else {
    const AcceptedStream accepted = [&](Stream::Events of_stream) {
      return stream = std::make_shared<MadeStream>(std::move(of_stream));
    };
    connection = Connection::accept(loop, accepted, identity_of(0), std::move(events));
  }
  while (!bytes.empty()) {
    const std::size_t count = piece == 0 ? bytes.size() : std::min(piece, bytes.size());
    stream->deliver(bytes.first(count));
    bytes = bytes.subspan(count);
  }
  if (silent) {
    loop.clock.advance(std::chrono::seconds(11));  // longer than a handshake may take
  } else {
    stream->end();
  }
  require(record.closed || (silent && record.ready), "an end of file, or an unfinished handshake, ends a connection");
  record.sent = messages_in(stream->written());
  connection->drop();
  return record;
}

/// As above, and the same in two pieces sizes: the network may cut bytes anywhere.
inline Record conversation(Input bytes, bool initiator, bool silent) {
  Record whole = conversation(bytes, initiator, 0, silent);
  require(conversation(bytes, initiator, 7, silent) == whole, "pieces do not change what bytes mean");
  return whole;
}

}  // namespace shardwire::fuzz
