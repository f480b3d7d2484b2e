// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <mutex>

#include "runtime/completion.hpp"
#include "runtime/release_queue.hpp"
#include "shardwire/error.hpp"
#include "shardwire/session.hpp"
#include "support/fork.hpp"

namespace shardwire::detail {

/// State shared by the caller's handle and the run on the loop.
class SHARDWIRE_LOCAL RestoreState {
 public:
  /// `owners`: of the destination.
  RestoreState(const Interruption& interruption, KeptOwners owners)
      : completion_(interruption), owners_(std::move(owners)) {}

  std::function<void()> cancel;  ///< set once, before the run begins

  void finish(RestoreReport report, std::map<TensorKey, Value> values, std::exception_ptr error) {
    report_ = std::move(report);
    values_ = std::move(values);
    owners_.release();
    completion_.finish(std::move(error));
  }
  /// Whether a child of fork() inherited it: it then never finishes, and its lock may be held forever.
  [[nodiscard]] bool inherited() const { return !owner_.is_this(); }
  /// Errors: throws Error{invalid_argument} in a child of fork().
  Completion& completion() {
    require_owner();
    return completion_;
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
  // Valid once done.
  [[nodiscard]] const RestoreReport& report() const { return report_; }
  [[nodiscard]] const std::map<TensorKey, Value>& values() const { return values_; }

 private:
  void require_owner() const {
    if (!inherited()) return;
    throw Error(ErrorCode::invalid_argument, "the restore is that of the process that has forked this one");
  }

  support::OwningProcess owner_;
  Completion completion_;
  KeptOwners owners_;                  // released by the end
  RestoreReport report_;               // written before the completion, then read-only
  std::map<TensorKey, Value> values_;  // likewise
  std::mutex mutex_;
  std::function<void(const Progress&)> callback_;  // guarded by mutex_
  Duration interval_{};                            // likewise
};

}  // namespace shardwire::detail
