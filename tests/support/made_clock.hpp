// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/clock.hpp"

// A clock that a test advances step by step.
namespace shardwire::test {

/// Its time moves only in advance().
class MadeClock final : public Clock {
 public:
  [[nodiscard]] Time now() const override { return now_; }
  std::unique_ptr<Alarm> make_alarm() override { return std::make_unique<MadeAlarm>(*this); }

  /// Runs the alarms that become due, the earliest first.
  void advance(std::chrono::nanoseconds by) {
    const Time end = now_ + by;
    while (MadeAlarm* next = earliest(end)) {
      now_ = std::max(now_, next->due);
      const auto task = std::exchange(next->task, nullptr);  // it may destroy the alarm
      task();
    }
    now_ = std::max(now_, end);  // a task may have called jump()
  }
  /// Time passes in which no alarm can run, as while a process is stopped.
  void jump(std::chrono::nanoseconds by) { now_ += by; }
  [[nodiscard]] std::size_t alarms_set() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(alarms_, [](const MadeAlarm* one) { return bool(one->task); }));
  }

 private:
  struct MadeAlarm final : Alarm {
    explicit MadeAlarm(MadeClock& of) : clock(of) { clock.alarms_.push_back(this); }
    ~MadeAlarm() override { std::erase(clock.alarms_, this); }
    MadeAlarm(const MadeAlarm&) = delete;
    MadeAlarm& operator=(const MadeAlarm&) = delete;
    void start(std::chrono::nanoseconds delay, std::function<void()> run) override {
      due = clock.now_ + std::max(delay, std::chrono::nanoseconds(0));
      task = std::move(run);
    }
    void stop() override { task = nullptr; }

    MadeClock& clock;
    Time due{};
    std::function<void()> task;
  };
  [[nodiscard]] MadeAlarm* earliest(Time end) const {
    MadeAlarm* found = nullptr;
    for (MadeAlarm* one : alarms_) {
      if (one->task && one->due <= end && (found == nullptr || one->due < found->due)) found = one;
    }
    return found;
  }

  Time now_ = Time(std::chrono::hours(1));
  std::vector<MadeAlarm*> alarms_;
};

}  // namespace shardwire::test
