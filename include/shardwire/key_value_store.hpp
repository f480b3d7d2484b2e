// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "shardwire/export.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// A store of the caller's that all members of a job reach, such as torch's TCPStore, etcd or Redis: through it members learn
/// where member 0 is. One small value is put for each session that member 0 opens; no secret is ever stored.
/// Torch:     put() is set(key, value); get() is wait({key}, timeout), then get(key); what wait() throws when the time is
///            over becomes an empty optional.
/// Keys:      "shardwire/rendezvous/<run id>", so that jobs of one store do not meet. What an earlier start of the job has left
///            there may stay: members that are refused there, or reach nobody, look for a newer value until their deadline.
/// Threads:   called only by Session::join(), on the thread that calls it. A store that several sessions use is called by as many
///            threads at a time as join.
/// Ownership: shared by the bootstraps that name it, their copies, and each session that has joined through it until that is
///            destroyed; it is not called once Session::join() has returned or thrown.
/// Deadline:  no call may take much longer than its timeout: a join waits for it, also beyond its own deadline.
/// Errors:    what an implementation throws ends Session::join() and comes out of it as it was thrown.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  /// Replaces what is there: a job that joins again puts a new value under the same key.
  virtual void put(const std::string& key, const Bytes& value) = 0;
  /// What member 0 calls, with what is left of its time to join: for stores whose put() waits for somebody. Calls put() unless
  /// overridden.
  virtual void put_within(const std::string& key, const Bytes& value, std::chrono::nanoseconds timeout) {
    static_cast<void>(timeout);
    put(key, value);
  }
  /// The newest value, as soon as there is one; empty when nobody has put any for `timeout`. First called with all that is left of
  /// the time to join; then every second, with that as the timeout, while this member has not joined.
  virtual std::optional<Bytes> get(const std::string& key, std::chrono::nanoseconds timeout) = 0;
};

}  // namespace shardwire
SHARDWIRE_API_END
