// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/addresses.hpp"
#include "runtime/interruption.hpp"
#include "shardwire/bootstrap.hpp"
#include "shardwire/options.hpp"

namespace shardwire {

/// Addresses of member 0 in the store of a bootstrap: lines of "host port", numeric, the best first.
/// Ownership: borrows the bootstrap and the interruption. Threads: one, see KeyValueStore.
class StoredRendezvous {
 public:
  /// Requires: the bootstrap has a store.
  StoredRendezvous(const Bootstrap& bootstrap, const Interruption& interruption);

  void put(std::span<const SocketAddress> addresses, Duration timeout);
  /// `timeout` is the rest of `join_timeout`, which the error quotes.
  /// Errors: throws Error{timed_out} naming member 0, Error{transport_failed} for a malformed value, and the
  ///         interruption of the wait.
  std::vector<SocketAddress> wait(Duration timeout, Duration join_timeout);
  /// The current addresses, if they differ from the last ones. Errors: as wait().
  std::optional<std::vector<SocketAddress>> new_addresses(Duration timeout);

 private:
  [[nodiscard]] std::vector<SocketAddress> parse() const;

  [[nodiscard]] std::optional<Bytes> first_value(Duration timeout) const;

  const Bootstrap& bootstrap_;
  const Interruption& interruption_;
  std::string key_;
  Bytes seen_;
};

}  // namespace shardwire
