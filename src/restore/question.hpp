// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "control/operation.hpp"
#include "restore/callbacks.hpp"
#include "restore/context.hpp"
#include "restore/publishers.hpp"
#include "runtime/clock.hpp"
#include "shardwire/error.hpp"

namespace shardwire::restore {

/// A long operation that follows the roster of a name until it knows its answer, and moves nothing.
/// Threads: loop thread only.
class Question : public Operation {
 public:
  void start() override {
    timer_.start(timeout_, [this] { timed_out(); });
    directory_changed();
  }
  void directory_changed() final {
    if (answered()) return;
    callbacks_.run([this] {
      roster_.follow();
      look();
    });
  }
  bool caller_failed(const std::exception_ptr& error) final {
    const bool runs = !answered();
    fail(error);
    return runs;
  }
  void abandon() final { fail(std::make_exception_ptr(Error(ErrorCode::cancelled, "the session was closed"))); }

 protected:
  /// Ownership: borrows the context.
  Question(const Context& context, std::string name, Duration timeout)
      : context_(context),
        callbacks_([this](const std::exception_ptr& error) { fail(error); }),
        roster_(context, std::move(name)),
        timeout_(timeout),
        timer_(context.clock) {}

  /// Looks for the answer, after every change of the directory.
  virtual void look() = 0;
  /// Ends with this error, unless it has ended.
  virtual void fail(const std::exception_ptr& error) = 0;
  virtual void timed_out() = 0;
  [[nodiscard]] virtual bool answered() const = 0;

  const Context& context_;
  Callbacks callbacks_;
  RosterView roster_;
  const Duration timeout_;
  Timer timer_;
};

}  // namespace shardwire::restore
