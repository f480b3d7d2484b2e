// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "shardwire/export.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// A store of the caller's that all members of a job reach, such as torch's TCPStore, etcd or Redis. Members learn the
/// addresses of member 0 from it. Member 0 puts one small value per session that it opens. It holds a job key too if the
/// bootstrap has none: the store and its logs then need the protection that the job needs.
/// Torch:     put() is set(key, value); get() is wait({key}, timeout), then get(key). Map the timeout exception of
///            wait() to an empty optional.
/// Keys:      "shardwire/rendezvous/<run id>", so that jobs sharing a store do not meet. A value of an earlier start of
///            the job may stay: members that are refused at its address, or get no answer, look for a newer value until
///            their deadline.
/// Threads:   called only by Session::join(), on its caller's thread. A store shared by several sessions may be called
///            by as many threads at once as join.
/// Ownership: shared by the bootstraps that name it, their copies, and each session that joined through it until that
///            session is destroyed. Not called after Session::join() has returned or thrown.
/// Deadline:  no call may take much longer than its timeout: a join waits for it, even beyond its own deadline.
/// Errors:    an exception of an implementation ends Session::join() and comes out of it unchanged.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  /// Replaces any existing value: a job that joins again puts a new value under the same key.
  virtual void put(const std::string& key, const Bytes& value) = 0;
  /// Called by member 0 with the rest of its join timeout, for stores whose put() waits for other members. Calls put()
  /// unless overridden.
  virtual void put_within(const std::string& key, const Bytes& value, std::chrono::nanoseconds timeout) {
    static_cast<void>(timeout);
    put(key, value);
  }
  /// The newest value, as soon as there is one; empty if there is none within `timeout`. The first call has the whole
  /// rest of the join timeout as its timeout, unless SessionOptions::interrupted is set; later calls follow every
  /// second, with a timeout of one second, until this member has joined.
  virtual std::optional<Bytes> get(const std::string& key, std::chrono::nanoseconds timeout) = 0;
};

}  // namespace shardwire
SHARDWIRE_API_END
