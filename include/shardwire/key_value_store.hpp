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
/// Keys:      "shardwire/rendezvous/<run id>", so that jobs of one store do not meet.
/// Threads:   called only by Session::join(), on the thread that calls it.
/// Errors:    what an implementation throws comes out of Session::join() as it was thrown.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  /// Replaces what is there: a job that joins again puts a new value under the same key.
  virtual void put(const std::string& key, const Bytes& value) = 0;
  /// The newest value, as soon as there is one; empty when nobody has put any for `timeout`. Called again every second with
  /// that as the timeout while member 0 does not answer.
  virtual std::optional<Bytes> get(const std::string& key, std::chrono::nanoseconds timeout) = 0;
};

}  // namespace shardwire
SHARDWIRE_API_END
