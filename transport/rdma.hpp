// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.hpp"

namespace shardwire::transport {

/// A port of an RDMA device, as the kernel tells of it.
struct RdmaPort {
  std::string device;
  std::string number;
  std::string state;   ///< "ACTIVE", "INIT", "DOWN", ..; empty: it does not say
  std::string folder;  ///< with what else it says of it

  [[nodiscard]] std::string name() const { return device + ":" + number; }
  [[nodiscard]] bool active() const { return state == "ACTIVE"; }
};
/// By device and number; the one place that looks for them.
std::vector<RdmaPort> rdma_ports(const std::string& folder = "/sys/class/infiniband");

/// Whether this host has an InfiniBand or RoCE device with an active port; which, or why not. Asks the kernel and no library.
Viability probe_rdma(const std::string& folder = "/sys/class/infiniband");
/// Names of the active ports, as "mlx5_0:1", in their order.
std::vector<std::string> active_ports(const std::string& folder = "/sys/class/infiniband");

/// Whether this host has a NIC that libfabric reads through and UCX does not: EFA, or Slingshot. Asks the kernel and no library.
Viability probe_libfabric_devices(const std::string& infiniband = "/sys/class/infiniband",
                                  const std::string& cxi = "/sys/class/cxi");
/// How many bytes this process may pin for hardware; none: without a limit.
std::optional<std::uint64_t> pinnable_bytes();
/// Less than this is not worth a fabric that pins what it moves: buffers of the library below, some 60 MB for each port and for the
/// side that serves, and then the memory that is read.
inline constexpr std::uint64_t min_pinnable_bytes = 256u << 20;

/// Of the transports that UCX reads by hardware with, those that a value of UCX_TLS leaves, separated by commas.
std::string reading_transports(std::string_view chosen);
/// Of these ports, those that a value of UCX_NET_DEVICES leaves.
std::vector<std::string> chosen_ports(std::vector<std::string> ports, std::string_view chosen);

}  // namespace shardwire::transport
