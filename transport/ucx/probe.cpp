// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {

Viability probe() {
  const TransportChoice choice = choose_transports();
  if (choice.shared_memory.empty() && choice.network.empty()) return {false, "UCX_TLS leaves no transport"};
  return {true, library_version()};
}

}  // namespace shardwire::transport::ucx
