// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "support/descriptors.hpp"
#include "support/fork.hpp"

// Lets processes of one host detect at once that a fabric is gone, by its destructor or by a kill. UCX detects nothing
// over shared memory, and on idle hardware only after its keepalive interval.
namespace shardwire::transport::ucx {

/// A local socket that listens as long as its owner lives. It never accepts: the pending connection is all that is
/// needed.
class Lifeline {
 public:
  /// Errors: throws Error{out_of_resources}.
  explicit Lifeline(std::uint64_t fabric);

 private:
  support::Descriptor socket_;
  support::ClosedOnFork closed_on_fork_;
};

/// A descriptor that becomes readable when the fabric is gone. Empty if there is no such fabric on this host, or if
/// more peers hold it than may wait on a socket (net.core.somaxconn).
support::Descriptor hold_lifeline(std::uint64_t fabric);
bool is_broken(const support::Descriptor& held);

}  // namespace shardwire::transport::ucx
