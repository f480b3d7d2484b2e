// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "transport/ucx/handles.hpp"

namespace shardwire::transport::ucx {

/// Transports and devices of an endpoint's lanes, as UCX lists them, e.g. "tcp/lo"; each once.
std::vector<std::string> printed_lanes(ucp_ep* endpoint);

}  // namespace shardwire::transport::ucx
