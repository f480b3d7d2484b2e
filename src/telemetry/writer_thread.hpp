// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace shardwire::telemetry {

/// Calls a function with the first failure of a file, and then drops it.
/// Threads: any. drop() waits for a call that runs.
class FirstFailure {
 public:
  explicit FirstFailure(std::function<void(const std::string& why)> callback) : callback_(std::move(callback)) {}

  void report(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (const auto callback = std::exchange(callback_, nullptr)) callback(why);
  }
  /// From now on report() calls nothing.
  void drop() {
    const std::lock_guard lock(mutex_);
    callback_ = nullptr;
  }

 private:
  std::mutex mutex_;
  std::function<void(const std::string& why)> callback_;  // guarded by mutex_; null: was called or dropped
};

/// Calls a function on a thread of its own: at the start, at an interval, and at the end. The destructor waits for the last call, for
/// at most `patience`. A call that hangs longer is the last one: the thread owns the function, and ends when it returns.
class WriterThread {
 public:
  /// `regular`: neither the first call nor the last.
  using Write = std::function<void(bool regular)>;

  WriterThread(std::chrono::milliseconds interval, std::chrono::milliseconds patience, Write write);
  ~WriterThread();
  WriterThread(const WriterThread&) = delete;
  WriterThread& operator=(const WriterThread&) = delete;

  /// Whether a thread could be started. If not, nothing is called.
  [[nodiscard]] bool runs() const { return thread_.joinable(); }

 private:
  class State;

  const std::shared_ptr<State> state_;  // owners: this and its thread
  std::thread thread_;
};

}  // namespace shardwire::telemetry
