// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.hpp"

namespace shardwire::transport {

/// A port of an RDMA device, as the kernel reports it.
struct RdmaPort {
  std::string device;
  std::string number;
  std::string state;   ///< "ACTIVE", "INIT", "DOWN", ..; empty: it does not say
  std::string folder;  ///< sysfs folder with its other attributes

  [[nodiscard]] std::string name() const { return device + ":" + number; }
  [[nodiscard]] bool active() const { return state == "ACTIVE"; }
};
/// Sorted by device and port number. The only function that enumerates ports.
std::vector<RdmaPort> rdma_ports(const std::string& folder = "/sys/class/infiniband");

/// Whether this host has an InfiniBand or RoCE device with an active port: which one, or why not. Queries only the
/// kernel.
Viability probe_rdma(const std::string& folder = "/sys/class/infiniband");
/// Names of the active ports, such as "mlx5_0:1", in the same order.
std::vector<std::string> active_ports(const std::string& folder = "/sys/class/infiniband");

/// Whether this host has a NIC that libfabric reads through and UCX does not: EFA or Slingshot. Queries only the
/// kernel.
Viability probe_libfabric_devices(const std::string& infiniband = "/sys/class/infiniband",
                                  const std::string& cxi = "/sys/class/cxi");
/// How many bytes this process may pin for hardware. Empty: no limit.
std::optional<std::uint64_t> pinnable_bytes();
/// Below the first bound, a fabric that pins memory is not opened: its library takes some 60 MB per port and for the
/// serving side, and the memory to be read comes on top. Below the second bound, which no model's state fits in, the
/// fabric works as far as possible and warns.
inline constexpr std::uint64_t min_pinnable_bytes = 256u << 20;
inline constexpr std::uint64_t ample_pinnable_bytes = 1u << 30;
/// Advice about a limit that is too low, for a process of this effective user. Linux makes the capabilities that a container is
/// given effective for root alone, unless they are ambient, which container runtimes do not do.
std::string how_to_pin_more(unsigned user);
/// Why this limit disables a fabric that pins memory. Empty: it does not.
std::string too_little_to_pin(const std::optional<std::uint64_t>& pinnable);

/// The transports of UCX's hardware reads that a value of UCX_TLS allows, separated by commas.
std::string reading_transports(std::string_view chosen);
/// Whether a value of UCX_TLS allows the transports by which UCX detects memory of NVIDIA GPUs.
bool leaves_cuda(std::string_view chosen);
/// Whether a value of FI_PROVIDER allows any libfabric provider that reads by hardware.
bool leaves_hardware_providers(std::string_view chosen);
/// The ports among these that a value of UCX_NET_DEVICES allows.
std::vector<std::string> chosen_ports(std::vector<std::string> ports, std::string_view chosen);

}  // namespace shardwire::transport
