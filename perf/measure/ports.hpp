// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/report.hpp"
#include "transport/rdma.hpp"

// What the kernel says of the ports of this host; no library is asked. `root` is put before /sys.
namespace shardwire::perf {

/// A port of an RDMA device, with what its speed and reach are judged by.
struct PortDetails : transport::RdmaPort {
  std::string physical_state{};      ///< "LinkUp", "Polling", "Disabled", ..
  std::string link_layer{};          ///< "InfiniBand" or "Ethernet"
  std::string rate{};                ///< as the kernel writes it
  double line_bytes_per_second = 0;  ///< 0: it does not tell
  bool has_gid = false;              ///< one at least is not zero
};
/// By device and number.
std::vector<PortDetails> port_details(const std::string& root = {});

/// Bytes in a second that the port or interface behind a path lets through each way; 0 where that is not known.
/// `carrier`: as a restore's report says, e.g. "rc_verbs/mlx5_0:1", or with the name of a network interface in it.
double line_rate_of(std::string_view carrier, const std::string& root = {});
/// The port or interface that a carrier names; empty where it names none.
std::string port_of(std::string_view carrier, const std::string& root = {});

/// Of the carrier of a path, what names the port that its bytes came in by: reads may go through another than messages.
std::string_view moving_carrier(const PeerReport& peer);
/// The same for all processes whose ports have the same names: kernel and network namespace.
std::string domain_of_ports();

/// What a restore got through a port.
struct PortBytes {
  std::string domain;  ///< domain_of_ports()
  std::string port;
  ByteCount bytes = 0;
  double line_bytes_per_second = 0;
};
/// Of the ports of this host that tell their rate.
std::vector<PortBytes> port_bytes(std::span<const PeerReport> peers, const std::string& root = {});

}  // namespace shardwire::perf
