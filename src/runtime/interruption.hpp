// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <utility>

#include "shardwire/error.hpp"

namespace shardwire {

/// Asks a session's caller, while threads of the caller wait in a call, whether they should stop waiting.
/// Threads: any; concurrent waits ask concurrently. Never used on the loop's thread.
class Interruption {
 public:
  using Slice = std::chrono::milliseconds;
  static constexpr Slice interval{100};

  Interruption() = default;
  /// `asked` returns true, or throws, to end the wait; empty: waits are never interrupted.
  explicit Interruption(std::function<bool()> asked) : asked_(std::move(asked)) {}

  [[nodiscard]] bool is_possible() const { return asked_ != nullptr; }
  /// Errors: throws Error{cancelled} if the caller wants the wait to end, and whatever its function throws.
  void check() const {
    if (asked_ && asked_()) throw Error(ErrorCode::cancelled, "SessionOptions::interrupted ended the call");
  }
  /// Calls `ready(slice)`, which waits for at most `slice`, until it returns true. Errors: as check().
  template <typename Ready>
  void wait(Ready ready) const {
    while (!ready(interval)) check();
  }
  /// As wait(), but an interruption calls `stop` and lets the wait go on: the operation then ends soon. A second
  /// interruption ends nothing. Errors: throws the interruption once `ready` has returned true.
  template <typename Ready, typename Stop>
  void wait(Ready ready, Stop stop) const {
    std::exception_ptr interrupted;
    while (!ready(interval)) {
      if (interrupted) continue;
      try {
        check();
      } catch (...) {
        interrupted = std::current_exception();
        stop();
      }
    }
    if (interrupted) std::rethrow_exception(interrupted);
  }

 private:
  std::function<bool()> asked_;
};

}  // namespace shardwire
