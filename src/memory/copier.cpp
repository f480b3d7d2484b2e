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

// Called before `more` jobs are queued.
void Copier::start_workers(std::size_t more) {
  std::size_t busy = 0;
  {
    const std::lock_guard lock(mutex_);
    busy = running_ + queue_.size();
    for (const auto& shared : shared_) busy += shared->width_ - shared->workers_;
  }
  const std::size_t wanted = std::min<std::size_t>(threads_, busy + more);
  try {
    while (workers_.size() < wanted) workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  } catch (const std::system_error&) {
    if (workers_.empty()) throw;  // otherwise the existing workers do the work
  }
}

Copier::Ticket Copier::submit(Job job, Done done) {
  start_workers(1);
  Ticket ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    ticket = ++last_ticket_;
    queue_.push_back({ticket, std::move(job), std::move(done), nullptr});
    waiting_ = queue_.size();
    ++unfinished_jobs_;
  }
  queued_.notify_one();
  if (threads_ == 0 && wake_) wake_();
  return ticket;
}

std::shared_ptr<Copier::SharedJob> Copier::submit_shared(std::size_t count, unsigned width, PartWork part, Done done) {
  const auto shared = std::make_shared<SharedJob>();
  shared->count_ = count;
  shared->part_ = std::move(part);
  shared->done_ = std::move(done);
  // More workers than parts would start and exit without work.
  shared->width_ =
      static_cast<unsigned>(std::clamp<std::size_t>(std::min<std::size_t>(width, count), 1, std::max(threads_, 1u)));
  start_workers(shared->width_);
  {
    const std::lock_guard lock(mutex_);
    shared_.push_back(shared);
    ++unfinished_jobs_;
  }
  queued_.notify_all();
  if (threads_ == 0 && wake_) wake_();
  return shared;
}

bool Copier::cancel(Ticket ticket) {
  Item dropped;  // destroyed after the lock is released: captures may have destructors
  const std::lock_guard lock(mutex_);
  const auto item = std::lower_bound(queue_.begin(), queue_.end(), ticket,
                                     [](const Item& a, Ticket value) { return a.ticket < value; });
  if (item == queue_.end() || item->ticket != ticket) return false;
  dropped = std::move(*item);
  queue_.erase(item);
  waiting_ = queue_.size();
  --unfinished_jobs_;
  return true;
}

// The rest waits for further calls, so that the caller's other work comes in between.
void Copier::run_here() {
  std::unique_lock lock(mutex_);
  if (queue_.empty() && shared_.empty()) return;
  const bool job = shared_.empty() || (job_is_next_ && !queue_.empty());
  job ? run_next(lock) : share_next(lock, std::stop_token());
  job_is_next_ = !job;
  const bool more = !queue_.empty() || !shared_.empty();
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
  return unfinished_jobs_ + finished_.size();
}

void Copier::work(const std::stop_token& stop) {
  ::pthread_setname_np(::pthread_self(), "shardwire copy");
  std::unique_lock lock(mutex_);
  bool jobs_first = true;  // jobs and parts alternate, so that neither waits for all of the other
  while (true) {
    queued_.wait(lock, stop, [this] { return !queue_.empty() || !shared_.empty(); });
    if (stop.stop_requested()) return;
    ++running_;
    const bool job = shared_.empty() || (jobs_first && !queue_.empty());
    if (job) {
      run_next(lock);
    } else {
      share_next(lock, stop);
    }
    jobs_first = !job;
    --running_;
  }
}

// Called with the lock held and returns with it held, like the functions below.
void Copier::run_next(std::unique_lock<std::mutex>& lock) {
  Item item = std::move(queue_.front());
  queue_.pop_front();
  waiting_ = queue_.size();
  lock.unlock();
  try {
    item.job();
  } catch (...) {
    item.failure = std::current_exception();
  }
  item.job = nullptr;  // captures are released here, before `done` runs
  lock.lock();
  --unfinished_jobs_;
  finished_.push_back(std::move(item));
  lock.unlock();
  if (wake_) wake_();
  lock.lock();
}

void Copier::share_next(std::unique_lock<std::mutex>& lock, const std::stop_token& stop) {
  const std::shared_ptr<SharedJob> shared = shared_.front();
  if (++shared->workers_ == shared->width_) shared_.pop_front();
  lock.unlock();
  const bool used_up = run_parts(*shared, stop);
  lock.lock();
  const bool was_full = shared->workers_ == shared->width_;
  --shared->workers_;
  if (used_up && shared->open_) {
    shared->open_ = false;
    std::erase(shared_, shared);
  } else if (shared->open_ && was_full) {
    shared_.push_front(shared);
    queued_.notify_one();
  }
  if (!shared->open_ && shared->workers_ == 0) finish(*shared, lock);
}

// True if no part is left to begin; false if a job is waiting as well.
bool Copier::run_parts(SharedJob& shared, const std::stop_token& stop) {
  while (true) {
    if (stop.stop_requested() || shared.stopped_.load(std::memory_order_relaxed)) return true;
    const std::size_t index = shared.next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= shared.count_) return true;
    try {
      shared.part_(index);
    } catch (...) {
      shared.stop();
      const std::lock_guard lock(mutex_);
      if (!shared.failure_) shared.failure_ = std::current_exception();
      return true;
    }
    shared.finished_.fetch_add(1, std::memory_order_release);
    if (waiting_.load(std::memory_order_relaxed) > 0) return false;
  }
}

void Copier::finish(SharedJob& shared, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  shared.part_ = nullptr;  // no thread calls it any more; as in run_next()
  lock.lock();
  --unfinished_jobs_;
  finished_.push_back({0, nullptr, std::move(shared.done_), shared.failure_});
  lock.unlock();
  if (wake_) wake_();
  lock.lock();
}

}  // namespace shardwire::memory
