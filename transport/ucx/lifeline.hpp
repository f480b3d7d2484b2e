// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "support/descriptors.hpp"
#include "support/fork.hpp"

// How processes of one host notice at once that a fabric is gone, by its destructor or by a kill: UCX notices nothing over
// shared memory, and on hardware that is idle only after its keepalive interval.
namespace shardwire::transport::ucx {

/// A local socket that listens as long as its owner lives. Nobody accepts: a connection is all there is to it.
class Lifeline {
 public:
  /// Errors: throws Error{out_of_resources}.
  explicit Lifeline(std::uint64_t fabric);

 private:
  support::Descriptor socket_;
  support::ClosedOnFork closed_on_fork_;
};

/// A descriptor that becomes readable when the fabric is gone. None when there is no such fabric on this host, or
/// more hold on to it than the system lets wait on a socket (net.core.somaxconn).
support::Descriptor hold_lifeline(std::uint64_t fabric);
bool is_cut(const support::Descriptor& held);

}  // namespace shardwire::transport::ucx
