// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardwire/plan.hpp"

namespace shardwire {

/// Latency and bandwidth of one class of links.
struct LinkSpeed {
  double latency_seconds = 0;
  double bytes_per_second = 0;
};

/// A cluster of equal hosts.
struct ClusterModel {
  std::string name;
  std::vector<std::string> sources{};  ///< origins of its figures, for people
  std::int32_t ranks_per_host = 0;     ///< default for jobs that do not specify it; 0: not known
  LinkSpeed copy;                      ///< inside a process, per process
  LinkSpeed host;                      ///< between processes of a host, per direction and process
  double host_total = 0;               ///< bytes per second of all these links in one host; 0: no such limit
  double network_latency_seconds = 0;  ///< between hosts
  std::vector<double> nics;            ///< bytes per second of each network link of a host, per direction
  double oversubscription = 1;         ///< total bandwidth of all hosts' links divided by the core's; 1: no limit there
  std::int32_t hosts = 0;              ///< minimum number of hosts; the core's bandwidth depends on it
};

enum class LinkKind : std::uint8_t { copy, host_out, host_in, host_total, nic_out, nic_in, core };
/// "copy", "host out", "network in", ...
std::string_view to_string(LinkKind kind);

/// One direction of one link. `owner`: a process (copy, host out, host in), else a host. `index`: of a network link.
struct FabricLink {
  LinkKind kind{};
  std::int32_t owner = 0;
  std::int32_t index = 0;
  double bytes_per_second = 0;
  ByteCount bytes = 0;     ///< bytes that cross it
  double utilisation = 0;  ///< its share of the predicted time at full speed, 0 .. 1
};

struct HostFlow {
  std::int32_t source = 0;
  std::int32_t target = 0;
  ByteCount bytes = 0;
};

/// The predicted duration and traffic of a restore.
struct RestorePrediction {
  double seconds = 0;
  double bound_seconds = 0;  ///< lower bound of any schedule: busiest link's bytes over its speed, plus its latency
  std::int32_t hosts = 0;
  ByteCount copied = 0;  ///< inside processes
  ByteCount within_hosts = 0;
  ByteCount between_hosts = 0;
  std::vector<FabricLink> links;     ///< links with traffic; the busiest (longest at full speed) first
  std::vector<HostFlow> host_flows;  ///< including flows within a host; by source host, then target host
  std::size_t steps = 0;             ///< of the simulation
  double resolution_seconds = 0;     ///< flows that end within this time of each other end together; 0: exact
};

/// Predicts a restore as fluid flows: after the latency of its class every flow runs at its max-min fair share of the
/// links on its path, and shares change when a flow begins or ends. Process p is on host p / ranks_per_host and uses
/// network link (p mod ranks_per_host) mod links for both directions; `process_of_target[t]` runs target rank t (empty:
/// process t), source rank s is in process s. Flows of equal links and size are merged. Beyond `exact_flows` flows,
/// ends that are close together are rounded up to one: at most `resolution_seconds` too late for a flow, so the
/// prediction is never below the bound.
/// Requires: speeds above 0, ranks_per_host >= 1, ranks not negative.
/// Cost: O(flows) memory, O(steps * flows) time.
RestorePrediction predict(const ClusterModel& fabric, std::int32_t ranks_per_host, std::span<const Flow> flows,
                          std::span<const std::int32_t> process_of_target = {}, std::size_t exact_flows = 4096);

}  // namespace shardwire
