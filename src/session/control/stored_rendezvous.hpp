// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "session/control/addresses.hpp"
#include "shardwire/bootstrap.hpp"
#include "shardwire/options.hpp"

namespace shardwire {

/// Where member 0 is, in the store of a bootstrap: lines of "host port", numeric, the best first.
/// Ownership: borrows the bootstrap. Threads: one, see KeyValueStore.
class StoredRendezvous {
 public:
  /// Requires: the bootstrap has a store.
  explicit StoredRendezvous(const Bootstrap& bootstrap);

  void put(std::span<const SocketAddress> addresses, Duration timeout);
  /// `timeout` is what is left of `join_timeout`, which the error tells.
  /// Errors: throws Error{timed_out} naming member 0, Error{transport_failed} for a value that is no list of addresses.
  std::vector<SocketAddress> wait(Duration timeout, Duration join_timeout);
  /// What is there now, unless it is what was seen last. Errors: as wait().
  std::optional<std::vector<SocketAddress>> news(Duration timeout);

 private:
  [[nodiscard]] std::vector<SocketAddress> parse() const;

  const Bootstrap& bootstrap_;
  std::string key_;
  Bytes seen_;
};

}  // namespace shardwire
