// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/call_thread.hpp"
#include "runtime/completion.hpp"
#include "runtime/interruption.hpp"
#include "runtime/release_queue.hpp"
#include "shardwire/session.hpp"
#include "support/fork.hpp"

namespace shardwire::detail {

/// State shared by the caller's handle and the thread of one started exchange.
/// Threads: any.
class SHARDWIRE_LOCAL ExchangeState : public std::enable_shared_from_this<ExchangeState> {
 public:
  /// The exchange; ends early if the interruption says so.
  using Body = std::function<ExchangeResult(const Interruption& interruption)>;

  /// `on_loop`: whether the caller is on the session's thread. `held`, `wanted`: the owners of both catalogs' memory.
  ExchangeState(const Interruption& of_callers, std::function<bool()> on_loop, KeptOwners held, KeptOwners wanted)
      : completion_(
            of_callers,
            [this, on_loop = std::move(on_loop)] { return on_loop() || thread_id_ == std::this_thread::get_id(); }),
        held_(std::move(held)),
        wanted_(std::move(wanted)) {}
  ~ExchangeState();
  ExchangeState(const ExchangeState&) = delete;
  ExchangeState& operator=(const ExchangeState&) = delete;

  /// Runs `body` on a thread of its own. Call it once. Errors: throws Error{out_of_resources}.
  void start(const StartThread& start_thread, Body body);

  /// Whether a child of fork() inherited it: it then never ends, and its lock may be held forever.
  [[nodiscard]] bool inherited() const { return !owner_.is_this(); }
  /// Errors: throws Error{invalid_argument} in a child of fork().
  Completion& completion();
  void cancel() { cancelled_ = true; }
  void listen(std::function<void(const Progress&)> callback, Duration interval);
  /// `wanted`: of the exchange, whose bytes are the total of its progress.
  void wants(const Catalog& wanted);
  /// Reports the progress of a restore of the exchange. Restores follow one another.
  void watch(Restore& restore);
  /// Valid once done, without an error.
  [[nodiscard]] const ExchangeResult& result() const { return result_; }

 private:
  void run(const Body& body) noexcept;
  /// Calls the caller's callback, if there is one.
  void report(const Progress& progress);
  [[nodiscard]] Duration interval() const;
  [[nodiscard]] Progress last_progress() const;

  support::OwningProcess owner_;
  Completion completion_;
  KeptOwners held_, wanted_;  // released by the end
  std::atomic<bool> cancelled_ = false;
  ByteCount total_bytes_ = 0;              // set before the first restore
  ByteCount done_bytes_ = 0;               // by restores before the last one
  std::atomic<ByteCount> last_bytes_ = 0;  // by the last one
  ExchangeResult result_;                  // written before the completion, then read-only
  mutable std::mutex mutex_;
  std::function<void(const Progress&)> callback_;       // guarded by mutex_
  Duration interval_ = std::chrono::milliseconds(100);  // likewise
  Progress last_;                                       // likewise
  std::atomic<std::thread::id> thread_id_;              // of thread_
  std::unique_ptr<CallThread> thread_;                  // null: not started
};

}  // namespace shardwire::detail
