// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace shardwire::test {

/// Whether the machine is emulated: some dozens of times slower than others.
inline bool on_slow_machine() {
  return std::getenv("TEST_SLOW_MACHINE") != nullptr;
}

/// Factor for time limits on this machine.
inline unsigned slowdown() {
  return on_slow_machine() ? 5 : 1;
}

/// Ends the process by SIGALRM if a case exceeds the deadline: a hang is a failure, not a stuck machine.
class Deadline {
 public:
  explicit Deadline(std::chrono::seconds after) { ::alarm(static_cast<unsigned>(after.count()) * slowdown()); }
  ~Deadline() { ::alarm(0); }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
};

/// Limit for an end that needs neither a peer nor a deadline, also on a busy machine. Waiting for a hung peer takes
/// longer.
inline constexpr std::chrono::seconds promptly(20);

/// Calls `step` until `met` returns true or the time is over; returns the last result of `met`. What lasts longer than some
/// milliseconds waits for a timer or for another process, which may need this processor.
template <typename Step, typename Met>
bool run_until(Step step, Met met, std::chrono::milliseconds at_most) {
  const auto begin = std::chrono::steady_clock::now();
  while (!met()) {
    const auto lasted = std::chrono::steady_clock::now() - begin;
    if (lasted > at_most * slowdown()) return met();
    step();
    if (lasted > std::chrono::milliseconds(5)) std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
  return true;
}

}  // namespace shardwire::test
