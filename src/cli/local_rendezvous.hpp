// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/bootstrap.hpp"

namespace shardwire::cli {

/// A loopback port for the rendezvous of a job on this host, and the job's own key. The socket stays bound, without
/// listening, until this object is destroyed: no other process is given the port meanwhile, and member 0 can still
/// listen on it, since both sides reuse the address.
class LocalRendezvous {
 public:
  /// Errors: throws std::system_error.
  LocalRendezvous();
  ~LocalRendezvous();
  LocalRendezvous(const LocalRendezvous&) = delete;
  LocalRendezvous& operator=(const LocalRendezvous&) = delete;

  /// For member 0; the others differ in rank.
  [[nodiscard]] Bootstrap bootstrap(int members) const;

 private:
  int socket_;
  std::uint16_t port_ = 0;
  Bytes key_;
};

}  // namespace shardwire::cli
