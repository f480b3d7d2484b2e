// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "plan/replan.hpp"
#include "restore/planning.hpp"
#include "runtime/completion.hpp"
#include "runtime/release_queue.hpp"
#include "shardwire/error.hpp"
#include "shardwire/report.hpp"
#include "shardwire/session.hpp"
#include "support/fork.hpp"

namespace shardwire::restore {
class RestoreOperation;

/// What an ended restore leaves, for Restore::resume() of the public API. Holds no lease and no connection.
struct Unfinished {
  std::shared_ptr<Planning> planning{};  ///< null: nothing is in place. Owners: this, and the attempt that has ended
  std::vector<PieceBox> missing{};       ///< of its plan; all other bytes are in place, and of the planned step
  Unavailable unavailable{};             ///< its holders, at the end
  std::map<TensorKey, SharedValue> values{};  ///< received by value
  RestoreReport report{};                     ///< of what is in place
};
}  // namespace shardwire::restore

namespace shardwire::detail {

/// State shared by the caller's handle and the run on the loop. A restore that has failed may run again.
class SHARDWIRE_LOCAL RestoreState {
 public:
  /// `on_loop`: whether the caller is on the session's thread. `owners`: of the destination.
  /// `stops_at_values`: see RestoreOptions.
  RestoreState(const Interruption& interruption, const std::function<bool()>& on_loop, KeptOwners owners,
               bool stops_at_values)
      : completion_(interruption, on_loop),
        values_ready_(interruption, on_loop),
        stops_at_values_(stops_at_values),
        owners_(std::move(owners)) {}

  restore::RestoreOperation* run = nullptr;  ///< while it runs; loop thread only
  // Set once, before the run begins:
  /// Called on the session's thread when it has completed: step and origin of what was restored. May be empty.
  std::function<void(std::int64_t step, std::uint64_t origin)> restored;
  /// Called at each end, before the caller sees it. May be empty.
  std::function<void(const RestoreReport& report, const std::exception_ptr& error)> ended;
  std::function<void()> cancel;
  /// On the session's thread, which cannot wait for the end: ends it at once, with no more writes. Elsewhere returns false.
  std::function<bool()> end_here;
  std::function<void(Duration timeout)> resume;  ///< see Restore::resume()
  std::function<void()> proceed;                 ///< see Restore::proceed()

  /// `left`: to resume it with; null: it cannot be resumed.
  void finish(RestoreReport report, std::map<TensorKey, SharedValue> values, std::exception_ptr error,
              std::unique_ptr<restore::Unfinished> left = nullptr) {
    run = nullptr;
    report_ = std::move(report);
    if (!offered_) values_ = std::move(values);  // the caller may be reading those that were offered
    unfinished_ = std::move(left);
    if (!unfinished_) owners_.release();
    if (ended) {
      try {
        ended(report_, error);
      } catch (...) {  // it comes out of wait(), like one of a progress callback
        if (!error) error = std::current_exception();
      }
    }
    if (error) error = with_report(error, report_);
    if (stops_at_values_ && !values_ready_.is_done()) values_ready_.finish(error);
    completion_.finish(std::move(error));
  }
  /// Gives the caller the values that have arrived. False: the restore has to stand until `proceed`. Loop thread only.
  /// Errors: throws Error{withdrawn} if the caller has accepted others.
  bool offer(const std::map<TensorKey, SharedValue>& values) {
    if (!stops_at_values_) return true;
    if (offered_ && proceeds_) {
      if (values == values_) return true;
      throw Error(ErrorCode::withdrawn, "the sources publish other values than those that the restore stopped at");
    }
    offered_ = true;
    values_ = values;
    values_ready_.finish(nullptr);
    return proceeds_;
  }
  /// Loop thread only.
  void note_proceeds() { proceeds_ = true; }
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
    if (stops_at_values_ && !proceeds_) {
      values_ready_.reopen();
      offered_ = false;
    }
    return std::move(unfinished_);
  }
  /// Whether a child of fork() inherited it: it then never finishes, and its lock may be held forever.
  [[nodiscard]] bool inherited() const { return !owner_.is_this(); }
  /// Errors: throws Error{invalid_argument} in a child of fork().
  void require_owner() const {
    if (!inherited()) return;
    throw Error(ErrorCode::invalid_argument,
                "this restore belongs to the parent process: a forked child cannot use it");
  }
  /// Errors: as require_owner().
  Completion& completion() {
    require_owner();
    return completion_;
  }
  /// Errors: as require_owner().
  Completion& values_ready() {
    require_owner();
    return stops_at_values_ ? values_ready_ : completion_;
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
  static std::exception_ptr with_report(const std::exception_ptr& error, const RestoreReport& report) noexcept {
    try {
      try {
        std::rethrow_exception(error);
      } catch (const Error& known) {
        return std::make_exception_ptr(known.with_report(std::make_shared<const RestoreReport>(report)));
      }
    } catch (...) {  // a caller's own exception, or there is no memory
      return error;
    }
  }

  support::OwningProcess owner_;
  Completion completion_;
  Completion values_ready_;
  const bool stops_at_values_;
  bool offered_ = false;   // values_ are those that the caller looks at; loop thread, or while it does not run
  bool proceeds_ = false;  // likewise
  KeptOwners owners_;      // released by the last end
  RestoreReport report_;   // written before the completion, then read-only
  std::map<TensorKey, SharedValue> values_;          // likewise, or before values_ready_
  std::unique_ptr<restore::Unfinished> unfinished_;  // likewise, until it is resumed
  std::mutex mutex_;
  std::function<void(const Progress&)> callback_;  // guarded by mutex_
  Duration interval_{};                            // likewise
};

}  // namespace shardwire::detail
