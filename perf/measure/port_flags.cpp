// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/port_flags.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "perf/measure/ports.hpp"

namespace shardwire::perf {
namespace {

std::string cure_of(const PortDetails& port) {
  if (port.state == "INIT" || port.state == "ARMED") return "the link is up; no subnet manager has configured it";
  if (port.physical_state == "Disabled")
    return "it is switched off: rdma link, or ip link set .. up, shows and changes that";
  return "no link: look at the cable and at the other end";
}

void flag_ports(const std::vector<PortDetails>& ports, std::vector<Flag>& flags) {
  for (const PortDetails& port : ports) {
    if (!port.active()) {
      flags.push_back(
          {"port", port.name(),
           fmt::format("is {} ({}), and carries nothing; {}", port.state.empty() ? "in no known state" : port.state,
                       port.physical_state, cure_of(port))});
      continue;
    }
    if (!port.has_gid) {
      flags.push_back({"GID", port.name(),
                       "has no address in its GID table, so no peer reaches it; over Ethernet it takes one "
                       "from an address of its interface"});
    }
    double fastest = 0;
    for (const PortDetails& other : ports) {
      if (other.active() && other.link_layer == port.link_layer)
        fastest = std::max(fastest, other.line_bytes_per_second);
    }
    if (port.line_bytes_per_second > 0 && port.line_bytes_per_second < fastest) {
      flags.push_back({"link rate", port.name(),
                       fmt::format("runs at {}, others of this host at {} Gb/sec; a cable or switch port may "
                                   "hold it back",
                                   port.rate, fastest * 8e-9)});
    }
  }
}

}  // namespace

std::vector<Flag> find_flags(const std::optional<ByteCount>& pinnable, const std::optional<ByteCount>& needed,
                             const std::string& root) {
  std::vector<Flag> flags;
  const std::vector<PortDetails> ports = port_details(root);
  if (ports.empty()) return flags;
  flag_ports(ports, flags);
  std::set<std::string> devices;
  for (const PortDetails& port : ports) devices.insert(port.device);
  std::error_code none;
  if (!std::filesystem::exists(root + "/dev/infiniband", none)) {
    flags.push_back(
        {"device files", "/dev/infiniband",
         fmt::format("is missing, although the kernel has {}: a container has to be given it (docker: --device "
                     "/dev/infiniband)",
                     fmt::join(devices, ", "))});
  }
  if (pinnable && *pinnable < needed.value_or(transport::ample_pinnable_bytes)) {
    flags.push_back({"locked memory", "RLIMIT_MEMLOCK",
                     fmt::format("is {} bytes, and RDMA pins all that is read{}: {}", *pinnable,
                                 needed ? fmt::format(", up to {} bytes in a rank of this case", *needed) : "",
                                 transport::how_to_pin_more(::geteuid()))});
  }
  return flags;
}

}  // namespace shardwire::perf
