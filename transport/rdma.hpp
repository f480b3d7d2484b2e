// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.hpp"

namespace shardwire::transport {

/// Whether this host has an InfiniBand or RoCE device with an active port; which, or why not. Asks the kernel and no library.
Viability probe_rdma(const std::string& folder = "/sys/class/infiniband");
/// Those ports, as "mlx5_0:1", in the order of their names.
std::vector<std::string> active_ports(const std::string& folder = "/sys/class/infiniband");

/// Of the transports that UCX reads by hardware with, those that a value of UCX_TLS leaves, separated by commas.
std::string reading_transports(std::string_view chosen);
/// Of these ports, those that a value of UCX_NET_DEVICES leaves.
std::vector<std::string> chosen_ports(std::vector<std::string> ports, std::string_view chosen);

}  // namespace shardwire::transport
