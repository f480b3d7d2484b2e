// SPDX-License-Identifier: Apache-2.0
#include "runtime/completion.hpp"

#include <algorithm>
#include <utility>

#include "runtime/waiting.hpp"

namespace shardwire::detail {

void Completion::finish(std::exception_ptr error) {
  std::function<void()> called;
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_ = true;
    if (readable_) readable_->signal();
    called = std::move(on_done_);
  }
  ended_.notify_all();
  if (called) called();
}

void Completion::reopen() {
  const std::lock_guard lock(mutex_);
  done_ = false;
  error_ = nullptr;
  if (readable_) readable_->clear();
}

bool Completion::is_done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Completion::require_may_wait() const {
  if (!ends_here_ || is_done() || !ends_here_()) return;
  throw Error(ErrorCode::unsupported, "a callback of the session cannot wait for an operation of the session");
}

void Completion::wait() const {
  require_may_wait();
  if (interruption_.is_possible()) {
    interruption_.wait([this](Interruption::Slice slice) { return done_within(slice); });
  }
  wait_for_end();
  throw_error();
}

bool Completion::wait_for(std::chrono::nanoseconds timeout) const {
  if (timeout > std::chrono::nanoseconds::zero()) require_may_wait();
  using WallClock = std::chrono::steady_clock;
  const auto began = WallClock::now();
  const auto left = [&] { return std::max(timeout - (WallClock::now() - began), std::chrono::nanoseconds::zero()); };
  while (!done_within(std::min<std::chrono::nanoseconds>(left(), Interruption::interval))) {
    if (left() == std::chrono::nanoseconds::zero()) return false;
    interruption_.check();
  }
  throw_error();
  return true;
}

void Completion::wait_for_end() const {
  if (Waiting* const made = Waiting::of_this_thread()) made->until([this] { return is_done(); }, Waiting::forever);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return done_; });
}

int Completion::descriptor() {
  const std::lock_guard lock(mutex_);
  if (!readable_) {
    readable_.emplace();
    if (done_) readable_->signal();
  }
  return readable_->descriptor();
}

void Completion::on_done(std::function<void()> called) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_) on_done_ = std::exchange(called, nullptr);
  }
  if (called) called();
}

bool Completion::done_within(std::chrono::nanoseconds timeout) const {
  if (Waiting* const made = Waiting::of_this_thread()) return made->until([this] { return is_done(); }, timeout);
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, timeout, [this] { return done_; });
}

// Done, so the error changes no more while the caller waits.
void Completion::throw_error() const {
  if (error_) std::rethrow_exception(error_);
}

}  // namespace shardwire::detail
