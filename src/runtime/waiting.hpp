// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <future>

namespace shardwire {

/// How a thread waits for other threads of its process. Threads wait by the kernel, unless a simulation runs them.
class Waiting {
 public:
  static constexpr std::chrono::nanoseconds forever = std::chrono::nanoseconds::max();

  /// Returns once `ready` returns true, or `timeout` has passed: the last result of `ready`.
  virtual bool until(const std::function<bool()>& ready, std::chrono::nanoseconds timeout) = 0;
  /// Of the calling thread; null: it waits by the kernel.
  static Waiting*& of_this_thread() {
    static thread_local Waiting* waiting = nullptr;
    return waiting;
  }

 protected:
  ~Waiting() = default;
};

/// Whether the future is ready, at the latest after `timeout`.
template <typename Result>
bool is_ready(const std::future<Result>& future, std::chrono::nanoseconds timeout) {
  const auto ready = [&] { return future.wait_for(std::chrono::nanoseconds(0)) == std::future_status::ready; };
  if (Waiting* const made = Waiting::of_this_thread()) return made->until(ready, timeout);
  if (timeout != Waiting::forever) return future.wait_for(timeout) == std::future_status::ready;
  future.wait();
  return true;
}

}  // namespace shardwire
