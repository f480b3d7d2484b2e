// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "session/control/link.hpp"
#include "session/path_choice.hpp"
#include "shardwire/paths.hpp"

namespace shardwire {

/// What became of the fabrics of this session with one peer.
struct PeerFabrics {
  const Link& link;
  std::span<const ConnectedFabric> connected;
  const std::map<std::size_t, std::string>& failed;  ///< those that could not be connected, and why
};

/// For people: "<transport>: <reason>" for each transport of this build that would come before a path of rank `best`, in the
/// order of their table. Requires: the peer has answered.
std::vector<std::string> reasons_against_better(const Fabrics& fabrics, std::span<const FabricTraits> traits,
                                                const PeerFabrics& peer, int best);

/// For people: that memory of a device passes host memory on its way, and why.
std::string staged_because(const std::vector<std::string>& reasons);
std::string cannot_access(int device, int other);
/// For people: which devices of this process do not access memory of which others, so that copies between them are staged. Empty:
/// each accesses all.
std::string devices_out_of_reach();

/// For people: why memory of devices passes host memory on its way over this endpoint. `devices`: of this process; none: that of its
/// peer's does. `reasons`: why it is not mapped or read, where something is known of that.
std::string why_staged(const transport::Endpoint& endpoint, std::span<const int> devices,
                       const std::vector<std::string>& reasons = {});

/// How memory of these devices comes over a fabric that is connected: straight to those that it reaches, by way of host memory to
/// the others. `host`: what it does with host memory. Requires: there is a device.
std::vector<FabricPath> paths_of_devices(const transport::Endpoint& endpoint, std::span<const int> devices,
                                         const FabricPath& host);

}  // namespace shardwire
