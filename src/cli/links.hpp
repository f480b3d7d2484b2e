// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "shardwire/report.hpp"

// Ports and network interfaces around one member of a job, as its kernel reports them. `root` is a prefix for /sys.
namespace shardwire::cli {

/// The number at the beginning of a kernel file; -1 if there is none.
int number_in(const std::filesystem::path& path);

/// A location among processors and memory; -1: the kernel does not report it.
struct Place {
  int node = -1;  ///< of memory and processors (NUMA)
  int socket = -1;
};
/// `device`: its folder in /sys.
Place place_of_device(const std::filesystem::path& device, const std::string& root);

/// An active port of an RDMA device, or a network interface that is up.
struct MemberLink {
  std::string name;      ///< "mlx5_0:1", "eth0"
  bool is_port = false;  ///< of an RDMA device
  std::string subnet{};  ///< "fe80:0000:0000:0000" of an InfiniBand port; empty: another kind, or none
  int mtu = -1;          ///< of the interface, also that of a RoCE port; -1: unknown
  Place place{};
  bool carries = false;  ///< bytes that this member receives
};

struct MemberLinks {
  std::string domain{};        ///< perf::domain_of_ports()
  std::string host{};          ///< name, for people
  std::vector<int> sockets{};  ///< of the processors on which this process may run, ascending; empty: unknown
  std::vector<MemberLink> links{};
};

/// The processors on which this thread may run; empty if the kernel does not say.
std::vector<int> own_processors();
/// `peers`: what this member received. Without the loopback interface.
MemberLinks find_links(std::span<const PeerReport> peers, std::span<const int> processors,
                       const std::string& root = {});

nlohmann::json to_json(const MemberLinks& member);
/// Errors: throws nlohmann::json::exception for another format.
MemberLinks member_links_from(const nlohmann::json& json);

}  // namespace shardwire::cli
