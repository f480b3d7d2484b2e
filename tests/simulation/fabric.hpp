// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "bugs.hpp"
#include "network.hpp"
#include "paths/fabrics.hpp"
#include "transport/transport.hpp"

namespace shardwire::simulation {

class SimulatedFabric;
struct Backing;
struct Port;

/// The fabrics that a process may open.
enum class FabricKind : std::uint8_t {
  host,     ///< maps memory of processes of the same host
  rdma,     ///< one-sided reads
  network,  ///< messages
  streams,  ///< messages, once the session has opened a socket for them
};

/// All simulated fabrics: their ports and regions.
class FabricNetwork {
 public:
  explicit FabricNetwork(Network& network) : network_(network), bug_(network.bug()) {}
  FabricNetwork(const FabricNetwork&) = delete;
  FabricNetwork& operator=(const FabricNetwork&) = delete;

  std::unique_ptr<transport::Fabric> open(Process& process, FabricKind kind);
  static const transport::Transport& row(FabricKind kind);

  // --- faults ---

  /// The process has ended. `silent`: its host has lost its power.
  void ended(Process& process, bool silent);
  /// The connections between these processes end, over fabrics that have connections.
  void reset(Process& one, Process& other);
  /// Payload from this host is garbled until then.
  void corrupt(int host, Clock::Time until) { corrupt_[host] = until; }
  /// No payload passes between the two hosts until then.
  void open_hole(int a, int b, Clock::Time until) { holes_[std::minmax(a, b)] = until; }

  [[nodiscard]] Network& network() { return network_; }
  [[nodiscard]] Events& events() { return network_.events(); }
  [[nodiscard]] Bug bug() const { return bug_; }
  /// Ports and regions that exist.
  [[nodiscard]] std::size_t open_ports() const { return ports_.size(); }
  [[nodiscard]] std::size_t regions() const { return backings_.size(); }

  /// When payload that leaves now arrives; what meets a hole is sent again after it.
  [[nodiscard]] Clock::Time arrival(int from, int to);
  /// Changes a byte, if the bytes come from a host that garbles.
  void garble(int host, transport::Memory into);

 private:
  friend class SimulatedFabric;
  friend class SimulatedEndpoint;
  friend class SimulatedRegion;
  /// The fabrics that are connected to the port learn that it has closed.
  void announce_end(const std::shared_ptr<Port>& port);

  Network& network_;
  Bug bug_;
  std::map<int, Clock::Time> corrupt_;
  std::map<std::pair<int, int>, Clock::Time> holes_;            // lower host first
  std::map<std::uint64_t, std::shared_ptr<Port>> ports_;        // owners: this, fabrics, endpoints
  std::map<std::uint64_t, std::shared_ptr<Backing>> backings_;  // owners: this until the region ends, and its users
  std::uint64_t next_id_ = 1;
};

}  // namespace shardwire::simulation
