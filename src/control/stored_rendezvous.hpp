// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/addresses.hpp"
#include "runtime/interruption.hpp"
#include "shardwire/bootstrap.hpp"
#include "shardwire/options.hpp"

namespace shardwire {

/// Member 0 puts its addresses into the store of a bootstrap: lines of "host port", numeric, the best first. If the job was given
/// no key, member 0 adds a line "key HEX" with the one that it has drawn.
/// Ownership: borrows the bootstrap and the interruption. Threads: one, see KeyValueStore.
class StoredRendezvous {
 public:
  /// Requires: the bootstrap has a store.
  StoredRendezvous(const Bootstrap& bootstrap, const Interruption& interruption);

  struct Contact {
    std::vector<SocketAddress> addresses;
    Bytes job_key{};  ///< empty: none is there
    bool operator==(const Contact&) const = default;
  };

  void put(const Contact& contact, Duration timeout);
  /// `timeout` is the rest of `join_timeout`, which the error quotes.
  /// Errors: throws Error{timed_out} naming member 0, Error{transport_failed} for a malformed value, and the
  ///         interruption of the wait.
  Contact wait(Duration timeout, Duration join_timeout);
  /// The current value, if it differs from the last one. Errors: as wait().
  std::optional<Contact> changed(Duration timeout);

 private:
  [[nodiscard]] Contact parse() const;

  [[nodiscard]] std::optional<Bytes> first_value(Duration timeout) const;

  const Bootstrap& bootstrap_;
  const Interruption& interruption_;
  std::string key_;
  Bytes seen_;
};

}  // namespace shardwire
