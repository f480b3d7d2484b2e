// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <type_traits>
#include <utility>

#include "runtime/interruption.hpp"
#include "runtime/loop.hpp"
#include "runtime/waiting.hpp"
#include "shardwire/error.hpp"

namespace shardwire {

/// Receiver for the result of an operation on the loop's thread, while the caller waits on another thread. Copies share
/// one result; call exactly one of them, once. If the last copy is destroyed without a result, the caller gets an error
/// that the session has ended.
/// Threads: any.
template <typename Result>
class Answer {
 public:
  explicit Answer(std::shared_ptr<std::promise<Result>> promise) : promise_(std::move(promise)) {}

  template <typename... Value>  // one, or none for Answer<void>
  void give(Value&&... value) const {
    promise_->set_value(std::forward<Value>(value)...);
  }
  void fail(const std::exception_ptr& error) const { promise_->set_exception(error); }
  /// As the callback of an operation that ends with a result, or with an error. Null: it has none.
  template <typename Value>
  void operator()(Value&& value, const std::exception_ptr& error) const {
    error ? fail(error) : give(std::forward<Value>(value));
  }
  void operator()(const std::exception_ptr& error) const requires std::is_void_v<Result> {
    error ? fail(error) : give();
  }

 private:
  std::shared_ptr<std::promise<Result>> promise_;  // owners: all copies of this answer
};

/// A future result of the loop's thread.
template <typename Result>
class Awaited {
 public:
  Awaited(std::future<Result> result, bool on_loop) : result_(std::move(result)), on_loop_(on_loop) {}

  [[nodiscard]] bool ready_within(std::chrono::nanoseconds timeout) const { return is_ready(result_, timeout); }
  /// Blocks until the result is there, then returns or throws it. Call it once. Errors: see await().
  Result take() {
    require_no_wait_on_loop();
    return result();
  }
  /// As take(), unless `interruption` ends the wait: the operation then goes on without a receiver.
  Result take(const Interruption& interruption) {
    require_no_wait_on_loop();
    if (interruption.is_possible()) interruption.wait([this](auto slice) { return ready_within(slice); });
    return result();
  }
  /// As take(). An interruption calls `stop`, which has to make the operation end soon, and comes out once it has.
  template <typename Stop>
  Result take(const Interruption& interruption, Stop stop) {
    require_no_wait_on_loop();
    if (interruption.is_possible()) interruption.wait([this](auto slice) { return ready_within(slice); }, stop);
    return result();
  }

 private:
  void require_no_wait_on_loop() const {
    if (!on_loop_ || ready_within(std::chrono::nanoseconds(0))) return;
    throw Error(ErrorCode::unsupported, "a callback of the session cannot wait for the session");
  }
  Result result() {
    is_ready(result_, Waiting::forever);
    try {
      return result_.get();
    } catch (const std::future_error&) {
      throw LoopEnded();
    }
  }

  std::future<Result> result_;
  bool on_loop_;  // the caller is on the loop's thread
};

/// Runs `start(answer)` on the loop's thread and returns once it has returned; the answer may come then or later.
/// Errors: as await(), as far as they concern `start`.
template <typename Result, typename Start>
Awaited<Result> begin_on(Loop& loop, Start start) {
  auto promise = std::make_shared<std::promise<Result>>();
  auto result = promise->get_future();
  loop.call([&start, answer = Answer<Result>(std::move(promise))] { start(answer); });
  return {std::move(result), loop.is_current()};
}

/// Runs `start(answer)` on the loop's thread, waits for its answer and returns it. `start` may borrow from the caller;
/// objects it passes on with the answer have to outlive this call in case the call throws.
/// Deadline: that of the operation, which answers when its time is over. await() adds none of its own.
/// Threads: any. On the loop's thread, as in a caller's callback, `start` runs at once and has to answer at once.
/// Errors: throws the errors of `start` and of the answer; LoopEnded if the loop has ended, or ends before the answer;
///         Error{unsupported} on the loop's thread if the answer is not immediate.
template <typename Result, typename Start>
Result await(Loop& loop, Start start) {
  return begin_on<Result>(loop, std::move(start)).take();
}

/// As await(), unless `interruption` ends the wait. The operation then goes on without a receiver, so `start` may borrow
/// from the caller only while it runs itself.
template <typename Result, typename Start>
Result await(Loop& loop, const Interruption& interruption, Start start) {
  return begin_on<Result>(loop, std::move(start)).take(interruption);
}

}  // namespace shardwire
