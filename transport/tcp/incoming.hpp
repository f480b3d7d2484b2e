// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "transport/tcp/frame.hpp"
#include "transport/tcp/ranges.hpp"

// Messages of one peer that have been announced and have not arrived completely.
namespace shardwire::transport::tcp {

struct IncomingMessage {
  ByteCount payload_bytes = 0;
  bool discarded = true;   ///< until the handler receives it
  Ranges into{};           ///< its target, unless discarded
  Completion done{};       ///< likewise
  ByteCount expected = 0;  ///< bytes of the frames that have begun; every byte is in exactly one frame
  ByteCount arrived = 0;
};

class IncomingMessages {
 public:
  /// Number of the next message to be announced.
  [[nodiscard]] std::uint64_t next() const { return next_; }
  /// No other message may be announced before one of these has ended: this bounds the memory that a peer can occupy. A
  /// sender waits only for its own bytes on other streams.
  [[nodiscard]] bool full() const { return messages_.size() >= max_messages; }
  /// Takes the next number. A message without payload is not stored.
  IncomingMessage* announce(ByteCount payload_bytes);
  /// Null: it has ended, or never existed.
  IncomingMessage* find(std::uint64_t number);
  /// Counts a frame's bytes as expected. False: they exceed the message.
  static bool expect(IncomingMessage& message, ByteCount offset, ByteCount bytes);
  void end(std::uint64_t number) { messages_.erase(number); }
  /// Removes all receives and returns their completions.
  std::vector<Completion> clear();

 private:
  static constexpr std::size_t max_messages = 64;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, IncomingMessage> messages_;
};

}  // namespace shardwire::transport::tcp
