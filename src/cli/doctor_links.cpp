// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "support/list_of.hpp"

namespace shardwire::cli {
namespace {

bool is_far(const MemberLink& link, const std::vector<int>& sockets) {
  return link.place.socket >= 0 && !sockets.empty() && std::ranges::find(sockets, link.place.socket) == sockets.end();
}

// An active port of the same kind on a socket of the member; null if there is none.
const MemberLink* nearer(const MemberLink& far, const MemberLinks& member) {
  for (const MemberLink& one : member.links) {
    const bool alike = far.is_port && one.is_port && one.subnet == far.subnet && one.place.socket >= 0;
    if (alike && !is_far(one, member.sockets)) return &one;
  }
  return nullptr;
}

void flag_far_nics(std::span<const MemberResult> results, std::vector<perf::Flag>& flags) {
  struct Found {
    Place place;
    const MemberLink* near;  // null: there is none
    std::vector<int> targets;
  };
  std::map<std::tuple<std::string, std::string, std::string>, Found> all;  // by domain, port and host, sockets of ranks
  for (const MemberResult& result : results) {
    const MemberLinks& member = result.links;
    // Where some of the bytes come through a near NIC, several NICs share the work.
    const auto carries_near = [&](const MemberLink& one) { return one.carries && !is_far(one, member.sockets); };
    if (!result.target || std::ranges::any_of(member.links, carries_near)) continue;
    for (const MemberLink& link : member.links) {
      if (!link.carries) continue;
      Found& found =
          all[{member.domain, fmt::format("{} of {}", link.name, member.host), support::runs_of(member.sockets)}];
      found.place = link.place;
      found.near = nearer(link, member);
      found.targets.push_back(to_int(*result.target));
    }
  }
  for (auto& [key, found] : all) {
    std::ranges::sort(found.targets);
    const auto& [domain, subject, sockets] = key;
    std::string says =
        fmt::format("is on socket {} (NUMA node {}), and target ranks {}, which receive through it, on socket {}: ",
                    found.place.socket, found.place.node, support::runs_of(found.targets), sockets);
    says +=
        found.near != nullptr
            ? fmt::format("{} is there, and UCX_NET_DEVICES={} selects it for ucx", found.near->name, found.near->name)
            : fmt::format("numactl --cpunodebind={}, or srun --cpu-bind, brings them to it", found.place.node);
    flags.push_back({found.near != nullptr ? "wrong NIC" : "NIC and CPU", subject, std::move(says)});
  }
}

// One of the members on each host, by domain.
std::map<std::string, const MemberLinks*> hosts_of(std::span<const MemberResult> results) {
  std::map<std::string, const MemberLinks*> hosts;
  for (const MemberResult& result : results) hosts.emplace(result.links.domain, &result.links);
  hosts.erase("");  // of members without a result
  return hosts;
}

void flag_mtus(std::span<const MemberResult> results, std::vector<perf::Flag>& flags) {
  std::set<std::string> used;
  for (const MemberResult& result : results) {
    for (const MemberLink& link : result.links.links) {
      if (link.carries) used.insert(link.name);
    }
  }
  for (const std::string& name : used) {
    std::map<int, std::vector<std::string>> hosts;  // by MTU
    for (const auto& [domain, member] : hosts_of(results)) {
      const auto link = std::ranges::find(member->links, name, &MemberLink::name);
      if (link != member->links.end() && link->mtu > 0) hosts[link->mtu].push_back(member->host);
    }
    if (hosts.size() < 2) continue;
    std::string mtus;
    for (const auto& [mtu, names] : hosts) {
      mtus += fmt::format("{}{} on {}", mtus.empty() ? "" : ", ", mtu, support::list_of(names));
    }
    flags.push_back(
        {"MTU", name,
         fmt::format("has an MTU of {}: larger packets may be lost between them. Set the same MTU on all (ip "
                     "link set dev INTERFACE mtu N)",
                     mtus)});
  }
}

void flag_subnets(std::span<const MemberResult> results, std::vector<perf::Flag>& flags) {
  std::map<std::string, std::map<std::string, std::string>> subnets;  // to domains, to a port of their host
  std::map<std::string, std::string> hosts;                           // with InfiniBand, by domain
  for (const auto& [domain, member] : hosts_of(results)) {
    for (const MemberLink& link : member->links) {
      if (link.subnet.empty()) continue;
      hosts.emplace(domain, member->host);
      subnets[link.subnet].emplace(domain, fmt::format("{} of {}", link.name, member->host));
    }
  }
  for (const auto& [subnet, ports] : subnets) {
    std::vector<std::string> inside;
    std::vector<std::string> outside;
    for (const auto& [domain, host] : hosts) {
      const auto port = ports.find(domain);
      if (port == ports.end()) {
        outside.push_back(host);
      } else {
        inside.push_back(port->second);
      }
    }
    if (outside.empty()) continue;
    flags.push_back(
        {"subnet", subnet,
         fmt::format("has {}, and no InfiniBand port of {}: without a router no port of theirs is reached from "
                     "it. Look at the cables and at the subnet prefix of the subnet manager",
                     support::list_of(inside), support::list_of(outside))});
  }
}

}  // namespace

std::vector<perf::Flag> flag_links(std::span<const MemberResult> results) {
  std::vector<perf::Flag> flags;
  flag_far_nics(results, flags);
  flag_mtus(results, flags);
  flag_subnets(results, flags);
  return flags;
}

}  // namespace shardwire::cli
