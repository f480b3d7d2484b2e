// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "shardwire/error.hpp"

namespace shardwire::memory {

/// Callbacks of one thread for work of other threads. A worker reports a ticket; poll() runs the callback stored under
/// it. So another thread never runs, copies or destroys a callback and its captures.
/// Threads: one thread at a time, except for reports.
class Completions {
 public:
  using Ticket = std::uint64_t;
  using Then = std::function<void(const std::exception_ptr& error)>;
  /// Threads: any; may outlive the Completions object.
  using Report = std::function<void(const std::optional<Error>& error)>;

  /// `wake` is called for each report, on any thread. It must not throw.
  explicit Completions(std::function<void()> wake);
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  Ticket add(Then then);
  /// Returns a function that reports to poll() that the work of a ticket has ended.
  [[nodiscard]] Report report(Ticket ticket) const;
  /// Runs the callback of a ticket now, unless it has run.
  bool run(Ticket ticket, const std::exception_ptr& error);
  /// Runs the callbacks reported so far and returns their number. A callback that throws ends the call; the others stay
  /// for the next call.
  unsigned poll();
  /// After it returns, `wake` is not called any more, and poll() runs nothing.
  void close();
  /// Destroys the callbacks that have not run. Requires: nothing uses their captures.
  void clear();

 private:
  class Inbox;

  std::shared_ptr<Inbox> inbox_;  // owners: this and the reports
  std::map<Ticket, Then> callbacks_;
  Ticket last_ticket_ = 0;
};

}  // namespace shardwire::memory
