// SPDX-License-Identifier: Apache-2.0
#include "memory/copier.hpp"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace shardwire::memory {

Copier::Copier(unsigned threads, std::function<void()> wake) : wake_(std::move(wake)), threads_(threads) {
  workers_.reserve(threads_);
}

Copier::~Copier() {
  // Stop all at once, so that the following joins wait only for the longest running job.
  for (std::jthread& worker : workers_) worker.request_stop();
}

// Called before a job is queued.
void Copier::start_worker() {
  std::size_t busy = 0;
  {
    const std::lock_guard lock(mutex_);
    busy = running_ + queue_.size();
  }
  const std::size_t wanted = std::min<std::size_t>(threads_, busy + 1);
  try {
    while (workers_.size() < wanted) workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  } catch (const std::system_error&) {
    if (workers_.empty()) throw;  // otherwise the existing workers do the work
  }
}

void Copier::submit(Job job, Done done) {
  start_worker();
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(job), std::move(done), nullptr});
  }
  queued_.notify_one();
  if (threads_ == 0 && wake_) wake_();
}

// The rest waits for further calls, so that the caller's other work comes in between.
void Copier::run_here() {
  std::unique_lock lock(mutex_);
  if (queue_.empty()) return;
  run_next(lock);
  const bool more = !queue_.empty();
  lock.unlock();
  if (more && wake_) wake_();
}

unsigned Copier::poll() {
  if (threads_ == 0) run_here();
  std::size_t completed = 0;
  {
    const std::lock_guard lock(mutex_);
    completed = finished_.size();
  }
  unsigned ran = 0;
  // Bounded by the number at the start; otherwise a callback that submits could keep the caller here for ever.
  for (; completed > 0; --completed) {
    Item item;
    {
      const std::lock_guard lock(mutex_);
      if (finished_.empty()) break;  // a callback polled as well
      item = std::move(finished_.front());
      finished_.pop_front();
    }
    ++ran;
    if (item.done) item.done(item.failure);
  }
  return ran;
}

std::size_t Copier::pending() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + running_ + finished_.size();
}

void Copier::work(const std::stop_token& stop) {
  ::pthread_setname_np(::pthread_self(), "shardwire copy");
  std::unique_lock lock(mutex_);
  while (true) {
    queued_.wait(lock, stop, [this] { return !queue_.empty(); });
    if (stop.stop_requested()) return;
    run_next(lock);
  }
}

// Called with the lock held and returns with it held.
void Copier::run_next(std::unique_lock<std::mutex>& lock) {
  Item item = std::move(queue_.front());
  queue_.pop_front();
  ++running_;
  lock.unlock();
  try {
    item.job();
  } catch (...) {
    item.failure = std::current_exception();
  }
  item.job = nullptr;  // captures are released here, before `done` runs
  lock.lock();
  --running_;
  finished_.push_back(std::move(item));
  lock.unlock();
  if (wake_) wake_();
  lock.lock();
}

}  // namespace shardwire::memory
