// SPDX-License-Identifier: Apache-2.0
#include "runtime/release_queue.hpp"

#include <thread>

#include "shardwire/memory.hpp"

namespace shardwire {

ReleaseQueue& ReleaseQueue::instance() {
  static auto* const queue = new ReleaseQueue();
  return *queue;
}

void ReleaseQueue::release(std::shared_ptr<const void> object) {
  if (!owner_.is_this()) {  // the parent's thread may have held the lock
    static_cast<void>(new std::shared_ptr<const void>(std::move(object)));
    return;
  }
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(object));
  ++unreleased_;
  changed_.notify_all();
  if (running_ || stopped_) return;
  std::thread([this] { run(); }).detach();
  running_ = true;
}

void ReleaseQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !waiting_.empty() && !stopped_; });
    std::shared_ptr<const void> next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    next.reset();
    lock.lock();
    --unreleased_;
    changed_.notify_all();
  }
}

void ReleaseQueue::stop(std::chrono::nanoseconds timeout) {
  if (!owner_.is_this()) return;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return unreleased_ == 0; });
  stopped_ = true;
}

void stop_releasing_owners(std::chrono::nanoseconds timeout) {
  ReleaseQueue::instance().stop(timeout);
}

}  // namespace shardwire
