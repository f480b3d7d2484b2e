// SPDX-License-Identifier: Apache-2.0
#include "memory/copier.hpp"

#include <algorithm>
#include <utility>

namespace shardwire::memory {

Copier::Copier(unsigned threads, std::function<void()> wake) : wake_(std::move(wake)) {
  const unsigned count = std::max(threads, 1u);
  workers_.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

Copier::~Copier() {
  // All at once, so that the joins that follow wait for the longest running job only.
  for (std::jthread& worker : workers_) worker.request_stop();
}

Copier::Ticket Copier::submit(Job job, Done done) {
  Ticket ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    ticket = ++last_ticket_;
    queue_.push_back({ticket, std::move(job), std::move(done), nullptr});
  }
  queued_.notify_one();
  return ticket;
}

bool Copier::cancel(Ticket ticket) {
  Item dropped;  // destroyed after the lock is gone: captures may have destructors of their own
  const std::lock_guard lock(mutex_);
  const auto item = std::lower_bound(queue_.begin(), queue_.end(), ticket,
                                     [](const Item& a, Ticket value) { return a.ticket < value; });
  if (item == queue_.end() || item->ticket != ticket) return false;
  dropped = std::move(*item);
  queue_.erase(item);
  return true;
}

unsigned Copier::poll() {
  std::size_t news = 0;
  {
    const std::lock_guard lock(mutex_);
    news = finished_.size();
  }
  unsigned ran = 0;
  // Bounded by what was there at the start, else a callback that submits could keep the caller here for ever.
  for (; news > 0; --news) {
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
  std::unique_lock lock(mutex_);
  while (true) {
    queued_.wait(lock, stop, [this] { return !queue_.empty(); });
    if (stop.stop_requested()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    ++running_;
    lock.unlock();
    try {
      item.job();
    } catch (...) {
      item.failure = std::current_exception();
    }
    item.job = nullptr;  // what it holds is released here, before `done` is told
    lock.lock();
    --running_;
    finished_.push_back(std::move(item));
    lock.unlock();
    if (wake_) wake_();
    lock.lock();
  }
}

}  // namespace shardwire::memory
