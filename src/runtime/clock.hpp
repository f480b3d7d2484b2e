// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace shardwire {

/// A one-shot alarm of a clock.
/// Threads: as its clock.
class Alarm {
 public:
  virtual ~Alarm() = default;
  /// Runs `task` after `delay`; replaces an earlier setting. The task may start the alarm again, or destroy it.
  virtual void start(std::chrono::nanoseconds delay, std::function<void()> task) = 0;
  virtual void stop() = 0;
};

/// The clock of a session. `UvLoop` is the real one; tests and simulations supply their own.
class Clock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// From any thread.
  [[nodiscard]] virtual Time now() const = 0;
  /// Ownership: the clock has to outlive it.
  virtual std::unique_ptr<Alarm> make_alarm() = 0;

 protected:
  ~Clock() = default;
};

/// For reports and messages.
inline double seconds_of(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

/// One-shot timer.
/// Threads: as its clock.
class Timer {
 public:
  explicit Timer(Clock& clock) : alarm_(clock.make_alarm()) {}
  /// Replaces an earlier setting.
  void start(std::chrono::nanoseconds delay, std::function<void()> task) { alarm_->start(delay, std::move(task)); }
  void stop() { alarm_->stop(); }

 private:
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace shardwire
