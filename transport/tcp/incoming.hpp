// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "transport/tcp/frame.hpp"
#include "transport/tcp/ranges.hpp"

// What one peer sends: messages that have been announced and are not there to the last byte.
namespace shardwire::transport::tcp {

struct IncomingMessage {
  ByteCount payload_bytes = 0;
  bool discarded = true;   ///< until somebody wants it
  Ranges into{};           ///< where it belongs, unless it is discarded
  Completion done{};       ///< likewise
  ByteCount expected = 0;  ///< bytes of the frames that have begun; every byte is in one frame only
  ByteCount arrived = 0;
};

class IncomingMessages {
 public:
  /// Number of the message that is announced next.
  [[nodiscard]] std::uint64_t next() const { return next_; }
  /// No other message may be announced before one of these has ended: it bounds what a peer makes us remember. A sender
  /// never has to wait for that, except for bytes of its own on other streams.
  [[nodiscard]] bool full() const { return messages_.size() >= max_messages; }
  /// Takes the next number. Nothing is kept of a message without a payload.
  IncomingMessage* announce(ByteCount payload_bytes);
  /// Null: it has ended, or there was none.
  IncomingMessage* find(std::uint64_t number);
  /// Counts a frame's bytes as expected. False: there are more than the message has.
  static bool expect(IncomingMessage& message, ByteCount offset, ByteCount bytes);
  void end(std::uint64_t number) { messages_.erase(number); }
  /// Completions of all receives, which are forgotten.
  std::vector<Completion> clear();

 private:
  static constexpr std::size_t max_messages = 64;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, IncomingMessage> messages_;
};

}  // namespace shardwire::transport::tcp
