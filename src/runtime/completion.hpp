// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>

#include "runtime/interruption.hpp"
#include "shardwire/session.hpp"
#include "support/wake_event.hpp"

namespace shardwire::detail {

/// The end of an operation: one thread ends it, others wait for it, watch a descriptor, or are called back.
/// Threads: any.
class Completion {
 public:
  /// `ends_here`: whether the calling thread is one that has to go on for the operation to end; such a thread may not
  /// wait. Empty: no thread is.
  explicit Completion(Interruption interruption, std::function<bool()> ends_here = nullptr)
      : interruption_(std::move(interruption)), ends_here_(std::move(ends_here)) {}

  /// Ends the operation, with an error or none. Call it once, and once after each reopen(). Calls the function given to on_done() on this thread,
  /// after all waiters can proceed.
  void finish(std::exception_ptr error);

  /// The operation runs again: the descriptor is not readable any more. Requires: it has ended, and nobody waits.
  void reopen();

  [[nodiscard]] bool is_done() const;
  /// Blocks until the end. Errors: throws the operation's error, or the interruption; the operation then goes on.
  ///         Error{unsupported} on a thread that may not wait.
  void wait() const;
  /// As wait(), but an interruption calls `stop`, which makes the operation end soon, and comes out at that end.
  template <typename Stop>
  void wait(Stop stop) const {
    require_may_wait();
    if (interruption_.is_possible()) {
      interruption_.wait([this](Interruption::Slice slice) { return done_within(slice); }, stop);
    }
    wait_for_end();
    throw_error();
  }
  /// As wait(), for at most `timeout`. Returns whether the operation has ended.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  /// Blocks until the end, whatever it is, without interruption.
  void wait_for_end() const;
  /// A descriptor that is readable from the end on. Owned by this; made by the first call.
  [[nodiscard]] int descriptor();
  /// Replaces the function to call at the end. Calls it on this thread if the operation has ended.
  void on_done(std::function<void()> called);

 private:
  void require_may_wait() const;
  [[nodiscard]] bool done_within(std::chrono::nanoseconds timeout) const;
  void throw_error() const;

  const Interruption interruption_;
  const std::function<bool()> ends_here_;
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  // Guarded by mutex_:
  bool done_ = false;
  std::exception_ptr error_;
  std::optional<support::WakeEvent> readable_;
  std::function<void()> on_done_;
};

}  // namespace shardwire::detail
