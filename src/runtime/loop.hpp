// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "runtime/clock.hpp"
#include "runtime/polling.hpp"
#include "runtime/random.hpp"
#include "runtime/stream.hpp"
#include "shardwire/error.hpp"

namespace shardwire {

/// A task was posted to a loop that has ended.
class LoopEnded : public Error {
 public:
  LoopEnded() : Error(ErrorCode::invalid_argument, "the session is closed") {}
};

/// The session's thread with its surroundings: clock, randomness, sockets, and a queue of calls from other threads. All
/// session state is accessed on this thread only, so it needs no locks. Sessions run on a UvLoop; simulations supply
/// their own.
/// Threads: loop thread only, unless stated otherwise.
class Loop : public Clock, public RandomSource, public Sockets {
 public:
  virtual ~Loop() = default;

  /// Runs `last` on the loop's thread as the final task, and returns once nothing runs any more. Other threads may post
  /// and call meanwhile and afterwards. Call it once, and not on the loop's own thread.
  virtual void end(std::function<void()> last) = 0;
  void end() { end(nullptr); }

  /// Runs `task` on the loop's thread, in order; drops it after end(). From any thread.
  virtual void post(std::function<void()> task) = 0;
  /// Runs `task` on the loop's thread and returns its result or throws its exception. On the loop's own thread, as in a
  /// caller's callback, it runs at once. From any thread. Errors: throws LoopEnded if the loop no longer runs.
  template <typename Task>
  auto call(Task task) -> decltype(task()) {
    if (is_current()) return task();
    // Owners: this call and the posted task, which is still finishing when the result wakes us.
    auto packaged = std::make_shared<std::packaged_task<decltype(task())()>>(std::move(task));
    auto result = packaged->get_future();
    post([packaged] { (*packaged)(); });
    packaged.reset();  // a dropped task breaks its promise
    try {
      return result.get();
    } catch (const std::future_error&) {
      throw LoopEnded();
    }
  }
  /// Whether the caller is on the loop's thread. From any thread.
  [[nodiscard]] virtual bool is_current() const = 0;
  /// This thread runs the loop, so a caller that waits here for the loop would wait for ever.
  [[nodiscard]] virtual bool waits_for_itself() const { return is_current(); }

  /// The number of threads that copies may use, of the `wanted`. 0: copies run on the loop's thread.
  [[nodiscard]] virtual unsigned copy_threads(unsigned wanted) const = 0;

  /// Runs `task` in each iteration, see Polling.
  virtual std::unique_ptr<Polling> poll(std::function<void()> task) = 0;
};

}  // namespace shardwire
