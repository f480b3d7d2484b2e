// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <uv.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "shardwire/error.hpp"

namespace shardwire {

/// What was to run on a loop that has ended.
class LoopEnded : public Error {
 public:
  LoopEnded() : Error(ErrorCode::invalid_argument, "the session is closed") {}
};

/// The session's thread: a libuv loop and a queue of calls from other threads. Everything that a session owns is touched
/// on this thread only, so nothing else in src/session takes a lock.
class Loop {
 public:
  Loop();
  /// end(), unless that was called before.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Runs `last` on the loop's thread as the last task of all, closes handles that are still open, and joins. Others may post and
  /// call meanwhile and afterwards. Once; not on the loop's own thread.
  void end(std::function<void()> last = nullptr);

  /// Runs `task` on the loop's thread, in order; drops it after end(). From any thread.
  void post(std::function<void()> task);
  /// Runs `task` there and returns its result; exceptions come back. On the loop's own thread, as in a caller's callback,
  /// it runs at once. Errors: throws LoopEnded where it does not run any more.
  template <typename Task>
  auto call(Task task) -> decltype(task()) {
    if (is_current()) return task();
    // Owners: this call and the posted task, which is still finishing when the result wakes us.
    auto packaged = std::make_shared<std::packaged_task<decltype(task())()>>(std::move(task));
    auto result = packaged->get_future();
    post([packaged] { (*packaged)(); });
    packaged.reset();  // what is dropped breaks its promise
    try {
      return result.get();
    } catch (const std::future_error&) {
      throw LoopEnded();
    }
  }
  /// Whether the caller is on the loop's thread.
  [[nodiscard]] bool is_current() const { return std::this_thread::get_id() == id_; }
  [[nodiscard]] uv_loop_t* raw() { return &loop_; }
  /// Where streams of this loop read into. Its bytes are the reader's until its callback returns: libuv reads one stream
  /// after the other.
  static uv_buf_t input_of(const uv_loop_t& loop);
  static Loop& of(const uv_loop_t& loop) { return *static_cast<Loop*>(loop.data); }

 private:
  void run();
  void drain();

  uv_loop_t loop_{};
  std::vector<char> input_;  // loop thread only
  uv_async_t wake_{};
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_
  bool ended_ = false;                        // likewise
  bool stopping_ = false;                     // loop thread only
  std::thread thread_;
  std::thread::id id_;  // of thread_, also once that has ended
};

/// Owner of a libuv handle: closing is asynchronous, so the handle lives on the heap until libuv lets go of it.
template <typename Handle>
struct HandleCloser {
  void operator()(Handle* handle) const {
    auto* base = reinterpret_cast<uv_handle_t*>(handle);
    handle->data = nullptr;  // callbacks that are already queued see that the owner is gone
    if (uv_is_closing(base) != 0) return;
    uv_close(base, [](uv_handle_t* closed) { delete reinterpret_cast<Handle*>(closed); });
  }
};
template <typename Handle>
using HandleOwner = std::unique_ptr<Handle, HandleCloser<Handle>>;

/// One-shot timer. Loop thread only.
class Timer {
 public:
  explicit Timer(Loop& loop);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  /// Replaces what was set before. Times are rounded up to milliseconds.
  void start(std::chrono::nanoseconds delay, std::function<void()> task);
  void stop();

 private:
  std::function<void()> task_;
  HandleOwner<uv_timer_t> handle_;
};

}  // namespace shardwire
