// SPDX-License-Identifier: Apache-2.0
#include "thread.hpp"

#include <utility>
#include <vector>

#include "runtime/loop.hpp"

namespace shardwire::simulation {

using namespace std::chrono_literals;

// --- batons and carriers ---

void Baton::give() {
  {
    const std::lock_guard lock(mutex_);
    there_ = true;
  }
  given_.notify_one();
}

void Baton::take() {
  std::unique_lock lock(mutex_);
  given_.wait(lock, [this] { return there_; });
  there_ = false;
}

namespace {

struct Idle {
  std::mutex mutex;
  std::vector<std::unique_ptr<Carrier>> carriers;  // guarded by mutex
};

Idle& idle() {
  static Idle all;
  return all;
}

}  // namespace

std::unique_ptr<Carrier> Carrier::take() {
  Idle& all = idle();
  const std::lock_guard lock(all.mutex);
  if (all.carriers.empty()) return std::make_unique<Carrier>();
  auto carrier = std::move(all.carriers.back());
  all.carriers.pop_back();
  return carrier;
}

void Carrier::give_back(std::unique_ptr<Carrier> carrier) {
  carrier->over_.take();
  Idle& all = idle();
  const std::lock_guard lock(all.mutex);
  all.carriers.push_back(std::move(carrier));
}

Carrier::Carrier()
    : thread_([this] {
        for (begun_.take(); body_; begun_.take()) {
          std::exchange(body_, nullptr)();
          over_.give();
        }
      }) {
}

Carrier::~Carrier() {
  begin(nullptr);
  thread_.join();
}

void Carrier::begin(std::function<void()> body) {
  body_ = std::move(body);
  begun_.give();
}

// --- threads of a simulation ---

SimulatedThread::SimulatedThread(Events& events, Process& process, Bug bug, std::function<void()> body)
    : events_(events), process_(process), bug_(bug), body_(std::move(body)) {
  carrier_->begin([this] { run(); });
}

SimulatedThread::~SimulatedThread() {
  Carrier::give_back(std::move(carrier_));
}

void SimulatedThread::start(const std::shared_ptr<SimulatedThread>& thread) {
  thread->self_ = thread;
  thread->iteration_ = thread->process_.each_iteration([self = thread.get()] {
    const bool wakes = self->ready_ != nullptr && !self->resuming_ && (*self->ready_)();
    if (wakes && self->bug_ != Bug::asleep) self->resume_later(self->events_.random().between(Duration(100), 5us));
  });
  thread->process_.add(*thread);
  thread->resume_later(1us);
}

void SimulatedThread::run() {
  turn_.take();
  of_this_thread() = this;
  std::exchange(body_, nullptr)();
  of_this_thread() = nullptr;
  ended_ = true;
  returned_.give();
}

// A wait that has begun since the event was posted is another one.
void SimulatedThread::resume_later(Duration after) {
  resuming_ = after < 1ms;
  const std::uint64_t wait = waits_;
  events_.after(after, &process_, "thread", [weak = std::weak_ptr(self_), wait] {
    const auto self = weak.lock();
    if (self && self->waits_ == wait) self->resume();
  });
}

void SimulatedThread::resume() {
  if (ended_) return;
  resuming_ = false;
  const auto keep = self_;
  turn_.give();
  returned_.take();
  if (!ended_) return;
  process_.no_iteration(iteration_);
  process_.remove(*this);
  self_.reset();
}

void SimulatedThread::run_to_end() {
  alone_ = true;
  const auto keep = self_;
  while (!ended_) resume();
}

void Process::end_threads() {
  while (!threads_.empty()) threads_.back()->run_to_end();
}

bool SimulatedThread::until(const std::function<bool()>& ready, std::chrono::nanoseconds timeout) {
  if (ready()) return true;
  if (timeout <= 0ns) return false;
  const Clock::Time now = events_.now();
  const bool limited = timeout < Clock::Time::max() - now;
  while (!ready() && !alone_ && !(limited && events_.now() >= now + timeout)) {
    ++waits_;
    ready_ = &ready;
    if (limited) resume_later(now + timeout - events_.now());
    returned_.give();
    turn_.take();
    ready_ = nullptr;
  }
  if (ready()) return true;
  if (!limited) throw LoopEnded();  // nothing can make it ready any more
  return false;
}

}  // namespace shardwire::simulation
