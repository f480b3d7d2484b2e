// SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/handles.hpp"

namespace shardwire::transport::loopback {

Port::Port(std::uint64_t id) : id_(id) {
}

bool Port::deliver(std::shared_ptr<Message> message) {
  {
    const std::lock_guard lock(mutex_);
    if (closed()) return false;
    waiting_.messages.push_back(std::move(message));
  }
  event_.signal();
  return true;
}

void Port::finish(OperationId operation, Outcome outcome) {
  {
    const std::lock_guard lock(mutex_);
    if (closed()) return;
    waiting_.finished.push_back({operation, std::move(outcome)});
  }
  event_.signal();
}

Port::Batch Port::drain() {
  const std::lock_guard lock(mutex_);
  return std::exchange(waiting_, {});
}

bool Port::arm() {
  // Clear first: a message that arrives after the check below makes the descriptor readable again.
  event_.clear();
  const std::lock_guard lock(mutex_);
  return waiting_.messages.empty() && waiting_.finished.empty();
}

void Port::close() {
  Batch left;
  {
    const std::lock_guard lock(mutex_);
    closed_.store(true, std::memory_order_release);
    left = std::exchange(waiting_, {});
  }
  for (const auto& message : left.messages) {
    message->sender->finish(message->operation, Fault{ErrorCode::peer_lost, "the receiving fabric was closed"});
  }
}

}  // namespace shardwire::transport::loopback
