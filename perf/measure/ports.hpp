// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/report.hpp"
#include "transport/rdma.hpp"

// Kernel data about the ports of this host; calls no library. `root` is a prefix for /sys.
namespace shardwire::perf {

/// A port of an RDMA device, with the data to judge its speed and reach.
struct PortDetails : transport::RdmaPort {
  std::string physical_state{};      ///< "LinkUp", "Polling", "Disabled", ..
  std::string link_layer{};          ///< "InfiniBand" or "Ethernet"
  std::string rate{};                ///< as the kernel writes it
  double line_bytes_per_second = 0;  ///< 0: not reported
  bool has_gid = false;              ///< at least one is not zero
};
/// Sorted by device and number.
std::vector<PortDetails> port_details(const std::string& root = {});

/// Line rate in bytes per second and direction of the port or interface behind a path; 0 if unknown. `carrier`: as in a
/// restore's report, such as "rc_verbs/mlx5_0:1", or containing the name of a network interface.
double line_rate_of(std::string_view carrier, const std::string& root = {});
/// The port or interface that a carrier names; empty if it names none.
std::string port_of(std::string_view carrier, const std::string& root = {});

/// The ports through which a restore received, ascending.
std::vector<std::string> ports_of(std::span<const PeerReport> peers, const std::string& root = {});

/// The part of a path's carrier that names the port of the received bytes: reads may use another port than messages.
std::string_view moving_carrier(const PeerReport& peer);
/// Equal for all processes in which port names have the same meaning: kernel and network namespace.
std::string domain_of_ports();

/// Bytes that a restore received through a port.
struct PortBytes {
  std::string domain;  ///< domain_of_ports()
  std::string port;
  ByteCount bytes = 0;
  double line_bytes_per_second = 0;
};
/// For the ports of this host that report their rate.
std::vector<PortBytes> port_bytes(std::span<const PeerReport> peers, const std::string& root = {});

}  // namespace shardwire::perf
