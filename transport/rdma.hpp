// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "transport/transport.hpp"

namespace shardwire::transport {

/// Whether this host has an InfiniBand or RoCE device with an active port; which, or why not. Asks the kernel and no library.
Viability probe_rdma(const std::string& folder = "/sys/class/infiniband");

}  // namespace shardwire::transport
