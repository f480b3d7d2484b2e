// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "paths/path_choice.hpp"
#include "shardwire/paths.hpp"

namespace shardwire {

/// State of this session's fabrics with one peer.
struct PeerFabrics {
  const wire::Hello& hello;  ///< of the peer
  bool is_local = false;     ///< it is a process of this host, and descriptors can be handed over
  const support::Fallback& why_not_local;
  std::span<const ConnectedFabric> connected;
  const std::map<std::size_t, std::string>& failed;  ///< fabrics that could not be connected, with reasons
};

/// One entry for each transport of this build that ranks before a path of rank `best`, in the order of their table.
std::vector<RejectedPath> rejected_before(const FabricTable& table, const PeerFabrics& peer, int best);

/// For people: states that device memory is staged through host memory, with reasons.
std::string staged_because(const std::vector<std::string>& reasons);
std::string cannot_access(int device, int other);
/// For people: devices of this process that cannot access the memory of others, so that copies between them are staged.
/// Empty: each accesses all.
std::string devices_out_of_reach();

/// For people: reasons for staging device memory over this endpoint. `devices`: of this process; none: the peer's
/// memory is staged. `reasons`: known reasons why it is not mapped or read.
std::string why_staged(const transport::Endpoint& endpoint, std::span<const int> devices,
                       const std::vector<std::string>& reasons = {});

/// Paths for memory of these devices over a connected fabric: direct for devices that it reaches, staged through host
/// memory for the others. `host`: the fabric's path for host memory. Requires: there is a device.
std::vector<TransportPath> paths_of_devices(const transport::Endpoint& endpoint, std::span<const int> devices,
                                            const TransportPath& host);

}  // namespace shardwire
