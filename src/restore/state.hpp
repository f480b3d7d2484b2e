// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "restore/unfinished.hpp"
#include "runtime/completion.hpp"
#include "runtime/release_queue.hpp"
#include "shardwire/error.hpp"
#include "shardwire/session.hpp"
#include "support/fork.hpp"

namespace shardwire::restore {
class RestoreTask;
}

namespace shardwire::detail {

/// State shared by the caller's handle and the run on the loop. A restore that has failed may run again.
class SHARDWIRE_LOCAL RestoreState {
 public:
  /// `on_loop`: whether the caller is on the session's thread. `owners`: of the destination.
  RestoreState(const Interruption& interruption, std::function<bool()> on_loop, KeptOwners owners)
      : completion_(interruption, std::move(on_loop)), owners_(std::move(owners)) {}

  restore::RestoreTask* run = nullptr;  ///< while it runs; loop thread only
  // Set once, before the run begins:
  /// Called on the session's thread when it has completed: step and origin of what was restored. May be empty.
  std::function<void(std::int64_t step, std::uint64_t origin)> restored;
  std::function<void()> cancel;
  std::function<void()> end_here;  ///< ends it at once, with no more writes; does nothing but on the session's thread
  std::function<void(Duration deadline)> resume;  ///< see Restore::resume()

  /// `left`: to resume it with; null: it cannot be resumed.
  void finish(RestoreReport report, std::map<TensorKey, SharedValue> values, std::exception_ptr error,
              std::unique_ptr<restore::Unfinished> left = nullptr) {
    run = nullptr;
    report_ = std::move(report);
    values_ = std::move(values);
    unfinished_ = std::move(left);
    if (!unfinished_) owners_.release();
    completion_.finish(std::move(error));
  }
  /// Runs again from now on. Returns what the end has left.
  /// Errors: throws Error{invalid_argument} unless it has failed and can be resumed.
  std::unique_ptr<restore::Unfinished> reopen() {
    require_owner();
    if (!completion_.is_done()) throw Error(ErrorCode::invalid_argument, "a restore that is running cannot be resumed");
    if (!unfinished_) {
      throw Error(ErrorCode::invalid_argument,
                  "a restore that is complete, or has ended with its session, cannot be resumed");
    }
    completion_.reopen();
    return std::move(unfinished_);
  }
  /// Whether a child of fork() inherited it: it then never finishes, and its lock may be held forever.
  [[nodiscard]] bool inherited() const { return !owner_.is_this(); }
  /// Errors: throws Error{invalid_argument} in a child of fork().
  void require_owner() const {
    if (!inherited()) return;
    throw Error(ErrorCode::invalid_argument, "the restore is that of the process that has forked this one");
  }
  /// Errors: as require_owner().
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
  [[nodiscard]] const std::map<TensorKey, SharedValue>& values() const { return values_; }

 private:
  support::OwningProcess owner_;
  Completion completion_;
  KeptOwners owners_;                                // released by the last end
  RestoreReport report_;                             // written before the completion, then read-only
  std::map<TensorKey, SharedValue> values_;          // likewise
  std::unique_ptr<restore::Unfinished> unfinished_;  // likewise, until it is resumed
  std::mutex mutex_;
  std::function<void(const Progress&)> callback_;  // guarded by mutex_
  Duration interval_{};                            // likewise
};

}  // namespace shardwire::detail
