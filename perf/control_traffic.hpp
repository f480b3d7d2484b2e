// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "shardwire/plan.hpp"

namespace shardwire::perf {

/// An order of events in a job whose source ranks publish and whose target ranks restore.
struct ControlScenario {
  const char* name;
  bool watch_first;  ///< else everybody has published before anybody asks
  bool random_order;
  std::chrono::seconds publishing;  ///< from the first publication to the last
};

/// Bytes of control messages until everybody can plan: real messages with their frames, handshakes included; sockets and
/// time are not. One entry per member.
struct ControlTraffic {
  std::vector<std::uint64_t> total;          ///< in and out, addresses apart
  std::vector<std::uint64_t> from_host;      ///< out of the rendezvous host to each other member
  std::vector<std::uint64_t> address_bytes;  ///< asking for and getting transport addresses
  std::vector<std::uint64_t> manifests;      ///< size of each distinct manifest
  std::uint64_t rosters = 0;                 ///< messages that carry one
};

/// Drives the real rendezvous and a real directory through a scenario. Every source rank that holds something publishes.
/// Errors: throws when a reader's directory is not what was published.
ControlTraffic control_traffic(const JobLayout& from, int readers, const ControlScenario& scenario);

}  // namespace shardwire::perf
