// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdlib>

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

/// Calls `step` until `met` returns true or the time is over; returns the last result of `met`.
template <typename Step, typename Met>
bool run_until(Step step, Met met, std::chrono::milliseconds at_most) {
  const auto end = std::chrono::steady_clock::now() + at_most * slowdown();
  while (!met()) {
    if (std::chrono::steady_clock::now() > end) return met();
    step();
  }
  return true;
}

}  // namespace shardwire::test
