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
/// Two bounds for two questions. With less than the first a fabric that pins what it moves is not opened: the library below it
/// takes some 60 MB for each port and for the side that serves, and then comes the memory that is read. With less than the second,
/// which is no state of any model, it works as far as that goes, and people are told.
inline constexpr std::uint64_t min_pinnable_bytes = 256u << 20;
inline constexpr std::uint64_t ample_pinnable_bytes = 1u << 30;
/// Why a fabric that pins is off where so much may be pinned; empty: it need not be.
std::string too_little_to_pin(const std::optional<std::uint64_t>& pinnable);

/// Of the transports that UCX reads by hardware with, those that a value of UCX_TLS leaves, separated by commas.
std::string reading_transports(std::string_view chosen);
/// Whether a value of UCX_TLS leaves UCX what it knows memory of NVIDIA GPUs by.
bool leaves_cuda(std::string_view chosen);
/// Whether a value of FI_PROVIDER leaves libfabric any provider that reads by hardware.
bool leaves_hardware_providers(std::string_view chosen);
/// Of these ports, those that a value of UCX_NET_DEVICES leaves.
std::vector<std::string> chosen_ports(std::vector<std::string> ports, std::string_view chosen);

}  // namespace shardwire::transport
