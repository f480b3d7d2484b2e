// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/incoming.hpp"

#include <utility>

namespace shardwire::transport::tcp {

IncomingMessage* IncomingMessages::announce(ByteCount payload_bytes) {
  const std::uint64_t number = next_++;
  if (payload_bytes == 0) return nullptr;
  IncomingMessage& message = messages_[number];
  message.payload_bytes = payload_bytes;
  return &message;
}

IncomingMessage* IncomingMessages::find(std::uint64_t number) {
  const auto found = messages_.find(number);
  return found == messages_.end() ? nullptr : &found->second;
}

bool IncomingMessages::expect(IncomingMessage& message, ByteCount offset, ByteCount bytes) {
  if (bytes > message.payload_bytes - message.expected) return false;
  if (offset > message.payload_bytes || bytes > message.payload_bytes - offset) return false;
  message.expected += bytes;
  return true;
}

std::vector<Completion> IncomingMessages::clear() {
  std::vector<Completion> all;
  for (auto& [number, message] : messages_) {
    if (!message.discarded) all.push_back(std::move(message.done));
  }
  messages_.clear();
  return all;
}

}  // namespace shardwire::transport::tcp
