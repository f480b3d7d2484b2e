// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace shardwire::test {

/// The machine is emulated: some dozens of times slower than others.
inline bool on_slow_machine() {
  return std::getenv("TEST_SLOW_MACHINE") != nullptr;
}

/// How much longer things may take here.
inline unsigned slowdown() {
  return on_slow_machine() ? 5 : 1;
}

/// Ends the process by SIGALRM when a case has not ended by then: a hang is a failure, not a stuck machine.
class Deadline {
 public:
  explicit Deadline(std::chrono::seconds after) { ::alarm(static_cast<unsigned>(after.count()) * slowdown()); }
  ~Deadline() { ::alarm(0); }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
};

/// Calls `step` until `met` is true or the time is over; returns what `met` said last.
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
