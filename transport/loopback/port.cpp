// SPDX-License-Identifier: Apache-2.0
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/loopback/handles.hpp"

namespace shardwire::transport::loopback {
namespace {

int make_descriptor() {
  const int descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (descriptor < 0) throw Error(ErrorCode::out_of_resources, "cannot create an event descriptor (eventfd)");
  return descriptor;
}

}  // namespace

Port::Port(std::uint64_t id) : id_(id), descriptor_(make_descriptor()) {
}
Port::~Port() {
  ::close(descriptor_);
}

void Port::signal() const {
  const std::uint64_t one = 1;
  // Can only fail when the counter is full, and then the descriptor is readable already.
  [[maybe_unused]] const auto written = ::write(descriptor_, &one, sizeof one);
}

bool Port::deliver(std::shared_ptr<Message> message) {
  {
    const std::lock_guard lock(mutex_);
    if (closed()) return false;
    waiting_.messages.push_back(std::move(message));
  }
  signal();
  return true;
}

void Port::finish(OperationId operation, Outcome outcome) {
  {
    const std::lock_guard lock(mutex_);
    if (closed()) return;
    waiting_.finished.push_back({operation, std::move(outcome)});
  }
  signal();
}

Port::Batch Port::drain() {
  const std::lock_guard lock(mutex_);
  return std::exchange(waiting_, {});
}

bool Port::arm() {
  // Drained first: what arrives after the look below makes the descriptor readable again.
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(descriptor_, &count, sizeof count);
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
