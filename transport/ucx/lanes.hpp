// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/ucx/handles.hpp"

namespace shardwire::transport::ucx {

struct Lane {
  std::string name;                  ///< transport and device, e.g. "tcp/lo"
  std::optional<int> peer_domain{};  ///< the peer's memory domain, by its number in keys
};

/// An endpoint's lanes, each name once: what UCX prints, which has the domains, and what it answers when it is asked (1.14).
std::vector<Lane> lanes_of(ucp_ep* endpoint);

}  // namespace shardwire::transport::ucx
