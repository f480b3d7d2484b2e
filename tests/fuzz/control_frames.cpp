// SPDX-License-Identifier: Apache-2.0
// Frames of a control connection after the handshake. The first byte as in handshake.cpp.
#include "fuzz/made_peer.hpp"

namespace shardwire::fuzz {

namespace {

/// The record that a connection has to make of the frames, read in the plainest way. Without the reasons.
Record expected_of(Input bytes, bool silent) {
  Record record;
  record.ready = true;
  while (true) {
    const Input rest = bytes;
    const auto frame = take_frame(bytes, wire::max_message_bytes);
    if (!frame) {
      std::uint64_t length = 0;
      if (rest.size() >= sizeof length) std::memcpy(&length, rest.data(), sizeof length);
      if (length > wire::max_message_bytes) record.closed = ErrorCode::transport_failed;
      break;
    }
    const auto message = accepted([&] { return wire::decode(*frame); });
    if (!message) {
      record.closed = ErrorCode::transport_failed;
      record.sent.emplace_back(wire::Failure{0, ErrorCode::transport_failed, ""});
      break;
    }
    if (const auto* const failure = std::get_if<wire::Failure>(&*message);
        failure != nullptr && failure->request == 0) {
      record.closed = failure->code;
      break;
    }
    if (std::holds_alternative<wire::Goodbye>(*message)) {
      record.orderly = true;
    } else if (const auto* const ping = std::get_if<wire::Ping>(&*message)) {
      record.sent.emplace_back(wire::Pong{ping->number});
    } else if (!std::holds_alternative<wire::Pong>(*message)) {
      record.messages.push_back(*message);
    }
  }
  if (!record.closed && !silent) record.closed = ErrorCode::peer_lost;
  record.orderly = record.orderly && record.closed;
  return record;
}

}  // namespace

void control_frames(Input input) {
  if (input.empty()) return;
  const bool initiator = (input.front() & std::byte{1}) != std::byte{0};
  const bool silent = (input.front() & std::byte{2}) != std::byte{0};
  const Input frames = input.subspan(1);
  Bytes bytes = frame_of(peer_hello());
  const Bytes proof = frame_of(proof_of(peer_hello(), initiator));
  bytes.insert(bytes.end(), proof.begin(), proof.end());
  bytes.insert(bytes.end(), frames.begin(), frames.end());
  Record record = conversation(bytes, initiator, silent);
  const Record expected = expected_of(frames, silent);
  require(record.ready, "an honest peer is admitted");
  require(record.messages == expected.messages, "all messages are passed on, in order");
  require(record.closed == expected.closed && record.orderly == expected.orderly, "a connection ends for its reason");
  require(record.sent.size() >= 2, "both sides prove the key");
  record.sent.erase(record.sent.begin(), record.sent.begin() + 2);
  // A silent peer is pinged.
  if (silent) std::erase_if(record.sent, [](const auto& sent) { return std::holds_alternative<wire::Ping>(sent); });
  for (wire::Message& sent : record.sent) {
    if (auto* const failure = std::get_if<wire::Failure>(&sent)) failure->message.clear();
  }
  require(record.sent == expected.sent, "pings and broken messages are answered");
}

}  // namespace shardwire::fuzz
