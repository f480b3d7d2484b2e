// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/ucx/handles.hpp"

namespace shardwire::transport::ucx {

struct Lane {
  std::string name;                  ///< transport and device, e.g. "tcp/lo"
  std::optional<int> peer_domain{};  ///< the peer's memory domain, by its number in keys
};

/// An endpoint's lanes, each name once.
std::vector<Lane> printed_lanes(ucp_ep* endpoint);
/// From what UCX prints: "#  lane[0]:  3:tcp/lo.0 md[1] -> md[2]/...".
std::vector<Lane> parse_lanes(std::string_view printed);

}  // namespace shardwire::transport::ucx
