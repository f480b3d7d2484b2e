// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>

#include "shardwire/error.hpp"
#include "shardwire/session.hpp"
#include "support/fork.hpp"

namespace shardwire::detail {

/// State shared by the caller's handle and the run on the loop. Everything below the mutex is guarded by it.
class SHARDWIRE_LOCAL RestoreState {
 public:
  std::function<void()> cancel;  ///< set once, before the run begins

  void finish(RestoreReport report, std::map<TensorKey, Value> values, std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      report_ = std::move(report);
      values_ = std::move(values);
      error_ = std::move(error);
      done_ = true;
    }
    changed_.notify_all();
  }
  /// Whether a child of fork() inherited it: it then never finishes, and its lock may be held forever.
  [[nodiscard]] bool inherited() const { return !owner_.is_this(); }
  void wait() {
    require_owner();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }
  void wait_done() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  bool done() {
    require_owner();
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void listen(std::function<void(const Progress&)> callback, Duration interval) {
    require_owner();
    const std::lock_guard lock(mutex_);
    callback_ = std::move(callback);
    interval_ = interval;
  }
  std::pair<std::function<void(const Progress&)>, Duration> listener() {
    const std::lock_guard lock(mutex_);
    return {callback_, interval_};
  }
  // Read-only once done.
  [[nodiscard]] const RestoreReport& report() const { return report_; }
  [[nodiscard]] const std::map<TensorKey, Value>& values() const { return values_; }

 private:
  void require_owner() const {
    if (!inherited()) return;
    throw Error(ErrorCode::invalid_argument, "the restore is that of the process that has forked this one");
  }

  support::OwningProcess owner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  RestoreReport report_;
  std::map<TensorKey, Value> values_;
  std::function<void(const Progress&)> callback_;
  Duration interval_{};
};

}  // namespace shardwire::detail
