// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <utility>

namespace shardwire {

/// A thread beside that of a session's loop, for a long call that waits for the loop.
/// Threads: any.
class CallThread {
 public:
  /// Requires: join() or detach() was called.
  virtual ~CallThread() = default;
  [[nodiscard]] virtual bool is_current() const = 0;
  /// Waits for its end. Not on the thread itself.
  virtual void join() = 0;
  virtual void detach() = 0;
};

/// Starts a thread. Errors: throws std::system_error.
using StartThread = std::function<std::unique_ptr<CallThread>(std::function<void()> body)>;

/// A thread of the process.
class RealThread final : public CallThread {
 public:
  explicit RealThread(std::function<void()> body) : thread_(std::move(body)) {}
  static std::unique_ptr<CallThread> start(std::function<void()> body) {
    return std::make_unique<RealThread>(std::move(body));
  }
  [[nodiscard]] bool is_current() const override { return thread_.get_id() == std::this_thread::get_id(); }
  void join() override { thread_.join(); }
  void detach() override { thread_.detach(); }

 private:
  std::thread thread_;
};

}  // namespace shardwire
