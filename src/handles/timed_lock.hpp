// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "runtime/interruption.hpp"
#include "shardwire/export.hpp"

namespace shardwire::detail {

/// Scoped lock with a deadline. (The thread sanitizer of GCC 12 does not know std::timed_mutex.)
class SHARDWIRE_LOCAL TimedLock {
 public:
  struct State {
    std::mutex mutex{};
    std::condition_variable free{};
    bool taken = false;  // guarded by mutex
  };

  using WallClock = std::chrono::steady_clock;

  /// Errors: throws the interruption of the wait.
  TimedLock(State& state, WallClock::time_point until, const Interruption& interruption = {}) : state_(state) {
    while (!take(std::min(until, WallClock::now() + Interruption::interval)) && WallClock::now() < until)
      interruption.check();
  }
  ~TimedLock() { release(); }
  TimedLock(const TimedLock&) = delete;
  TimedLock& operator=(const TimedLock&) = delete;
  /// False: the deadline passed while another thread held the lock.
  [[nodiscard]] bool owns() const { return mine_; }
  /// Gives the lock back before the destructor does. From any thread.
  void release() {
    if (!mine_) return;
    const std::lock_guard lock(state_.mutex);
    mine_ = state_.taken = false;
    state_.free.notify_one();
  }

 private:
  bool take(WallClock::time_point until) {
    std::unique_lock lock(state_.mutex);
    mine_ = state_.free.wait_until(lock, until, [this] { return !state_.taken; });
    if (mine_) state_.taken = true;
    return mine_;
  }

  State& state_;
  bool mine_ = false;
};

}  // namespace shardwire::detail
