// SPDX-License-Identifier: Apache-2.0
#include "session/path_reasons.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "memory/device.hpp"

namespace shardwire {

namespace {

std::string why_not(const Fabrics& fabrics, std::span<const FabricTraits> traits, const PeerFabrics& peer,
                    const transport::Transport& row) {
  std::size_t fabric = 0;
  while (fabric < fabrics.size() && fabrics.row(fabric).name != row.name) ++fabric;
  // Nobody looks for threads of one process but those who have asked for them.
  if (fabric == fabrics.size()) return row.reach == Reach::process ? std::string() : fabrics.why_not_open(row);
  const auto connected = std::ranges::find(peer.connected, fabric, &ConnectedFabric::fabric);
  if (connected != peer.connected.end()) return connected->path.why_not;
  if (const auto failed = peer.failed.find(fabric); failed != peer.failed.end()) return failed->second;
  const wire::Hello& hello = peer.link.peer();
  const wire::FabricOffer& own = traits[fabric].offer;
  const auto offer = std::ranges::find(hello.fabrics, own.name, &wire::FabricOffer::name);
  if (offer == hello.fabrics.end()) return fmt::format("member {} has not opened it", hello.rank);
  if (*offer != own) {
    return fmt::format("member {} is in another domain of it ({}, here {})", hello.rank, offer->domain, own.domain);
  }
  if (row.reach == Reach::host && !peer.link.is_local()) return peer.link.why_not_local();
  return "it was not connected";
}

}  // namespace

std::string staged_because(const std::vector<std::string>& reasons) {
  std::string text = "staged through host memory";
  for (const std::string& one : reasons) {
    if (!one.empty()) text += (&one == reasons.data() ? ": " : ", ") + one;
  }
  return text;
}

std::string why_staged(const transport::Endpoint& endpoint, const std::vector<std::string>& reasons) {
  std::vector<std::string> all = reasons;
  all.push_back(endpoint.path({MemoryKind::cuda, 0}).why_not);
  return staged_because(all);
}

std::string devices_out_of_reach() {
  const memory::FoundRuntime found = memory::device_runtime();
  std::vector<std::string> reasons;
  const int count = found.runtime ? found.runtime->device_count() : 0;
  for (int device = 0; device < count; ++device) {
    try {
      const std::vector<int> reached = found.runtime->details(device).peers;
      for (int other = 0; other < count; ++other) {
        if (other != device && std::ranges::find(reached, other) == reached.end()) {
          reasons.push_back(cannot_access(device, other));
        }
      }
    } catch (const Error&) {  // whoever uses the device says why
    }
  }
  return reasons.empty() ? std::string() : "between some devices " + staged_because(reasons);
}

std::string cannot_access(int device, int other) {
  return fmt::format("device {} cannot access memory of device {}", device, other);
}

std::vector<std::string> reasons_against_better(const Fabrics& fabrics, std::span<const FabricTraits> traits,
                                                const PeerFabrics& peer, int best) {
  std::vector<std::string> reasons;
  for (const transport::Transport& row : transport::registered()) {
    if (potential_path(row.preference) >= best) continue;
    const std::string why = why_not(fabrics, traits, peer, row);
    if (!why.empty()) reasons.push_back(fmt::format("{}: {}", row.name, why));
  }
  return reasons;
}

}  // namespace shardwire
