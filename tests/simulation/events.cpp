// SPDX-License-Identifier: Apache-2.0
#include "events.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace shardwire::simulation {

// --- one process ---

void Process::stop() {
  if (stopped_ || ended_) return;
  stopped_ = true;
  stopped_at_ = events_.now();
}

void Process::resume() {
  if (!stopped_) return;
  stopped_ = false;
  stopped_for_ += events_.now() - stopped_at_;
  // In their order: all are ready when the process runs again.
  for (auto& task : std::exchange(waiting_, {})) {
    if (!ended_) events_.guarded(this, task);
  }
}

Duration Process::stopped_for() const {
  return stopped_ ? stopped_for_ + (events_.now() - stopped_at_) : stopped_for_;
}

std::uint64_t Process::each_iteration(std::function<void()> task) {
  iterations_.push_back(std::make_shared<Iteration>(Iteration{next_iteration_++, std::move(task)}));
  return iterations_.back()->number;
}

void Process::no_iteration(std::uint64_t number) {
  std::erase_if(iterations_, [&](const auto& one) { return one->number == number; });
}

void Process::run(const std::function<void()>& task) {
  ++count_;
  task();
  for (std::size_t i = 0; i < iterations_.size() && !ended_; ++i) {
    const auto iteration = iterations_[i];
    iteration->task();
  }
}

// --- all events ---

void Events::after(Duration delay, Process* process, std::string_view what, std::function<void()> task) {
  at(now_ + std::max(delay, Duration::zero()), process, what, std::move(task));
}

void Events::at(Clock::Time time, Process* process, std::string_view what, std::function<void()> task) {
  queue_.push_back({std::max(time, now_), random_.next(), process, what, std::move(task)});
  std::push_heap(queue_.begin(), queue_.end(), Later());
}

bool Events::step(Clock::Time end) {
  if (queue_.empty() || queue_.front().at > end) {
    now_ = std::max(now_, end);
    return false;
  }
  std::pop_heap(queue_.begin(), queue_.end(), Later());
  const Event event = std::move(queue_.back());
  queue_.pop_back();
  now_ = event.at;
  Process* const process = event.process;
  if (process != nullptr && process->ended()) return true;
  ++ran_;
  trace_.line(now_ns(), process != nullptr ? process->number() : 0, "{}", event.what);
  if (process != nullptr && process->stopped()) {
    process->waiting_.push_back(event.task);
  } else {
    guarded(process, event.task);
  }
  return true;
}

void Events::guarded(Process* process, const std::function<void()>& task) {
  Process* const before = std::exchange(running_, process);  // one of them may let others go on
  try {
    if (process != nullptr) {
      process->run(task);
    } else {
      task();
    }
  } catch (const std::exception& error) {
    escaped_.emplace_back(error.what());
    trace_.line(now_ns(), process != nullptr ? process->number() : 0, "EXCEPTION {}", error.what());
  }
  running_ = before;
}

}  // namespace shardwire::simulation
