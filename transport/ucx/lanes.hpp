// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/ucx/handles.hpp"

namespace shardwire::transport::ucx {

struct Lane {
  std::string name;                  ///< transport and device, e.g. "tcp/lo"
  std::optional<int> peer_domain{};  ///< number of the peer's memory domain, as used in keys
};

/// An endpoint's lanes, each name once: from UCX's printed form, which has the domains, and from its query (1.14).
std::vector<Lane> lanes_of(ucp_ep* endpoint);

}  // namespace shardwire::transport::ucx
