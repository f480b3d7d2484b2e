// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

namespace shardwire {

/// A restore, or another long call, as the session's core sees it: receives the session's events, and ends with the
/// session.
/// Threads: loop thread only.
class Operation {
 public:
  virtual ~Operation() = default;

  virtual void start() = 0;
  virtual void directory_changed() = 0;
  /// Addresses of members have come, or that they are not there.
  virtual void addresses_came() {}
  /// A callback of the caller's, such as its log sink, has thrown. False: this has ended, or cannot report it.
  virtual bool caller_failed(const std::exception_ptr&) { return false; }
  /// The fabric as a whole has failed.
  virtual void fabric_broke(const std::exception_ptr&) {}

  // The session ends, in this order:
  /// Begins nothing more, and cuts off incoming data.
  virtual void stop_writing() {}
  /// Whether all writes have ended.
  [[nodiscard]] virtual bool written() const { return true; }
  /// Reports cancelled; nothing may be called afterwards but the destructor.
  virtual void abandon() = 0;
};

}  // namespace shardwire
