// SPDX-License-Identifier: Apache-2.0
#include "paths/path_reasons.hpp"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "memory/device.hpp"

namespace shardwire {

namespace {

support::Fallback why_not(const FabricTable& table, const PeerFabrics& peer, const FabricTable::Row& row) {
  if (!row.open) return row.why_not_open;
  const std::size_t fabric = *row.open;
  const auto connected = std::ranges::find(peer.connected, fabric, &ConnectedFabric::fabric);
  if (connected != peer.connected.end()) return connected->path.why_not;
  if (const auto failed = peer.failed.find(fabric); failed != peer.failed.end()) {
    return {FallbackReason::failed, failed->second};
  }
  const wire::Hello& hello = peer.hello;
  const wire::FabricOffer& own = table.open[fabric].offer;
  const auto offer = std::ranges::find(hello.fabrics, own.name, &wire::FabricOffer::name);
  if (offer == hello.fabrics.end()) {
    return {FallbackReason::peer_without, fmt::format("member {} has not opened it", hello.rank)};
  }
  if (*offer != own) {
    return {FallbackReason::other_domain,
            fmt::format("member {} is in another domain of it ({}, here {})", hello.rank, offer->domain, own.domain)};
  }
  if (row.reach == Reach::host && !peer.is_local) return peer.why_not_local;
  return {FallbackReason::not_connected, "it was not connected"};
}

}  // namespace

std::string staged_because(const std::vector<std::string>& reasons) {
  std::string text = "staged through host memory";
  for (const std::string& one : reasons) {
    if (!one.empty()) text += (&one == reasons.data() ? ": " : ", ") + one;
  }
  return text;
}

std::string why_staged(const transport::Endpoint& endpoint, std::span<const int> devices,
                       const std::vector<std::string>& reasons) {
  constexpr int first[] = {0};
  std::vector<std::string> all = reasons;
  for (const int device : devices.empty() ? std::span<const int>(first) : devices) {
    std::string why = endpoint.path({MemoryKind::cuda, device}).why_not.detail;
    if (std::ranges::find(all, why) == all.end()) all.push_back(std::move(why));
  }
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
    } catch (const Error&) {  // the operation that uses the device reports the error
    }
  }
  return reasons.empty() ? std::string() : "between some devices " + staged_because(reasons);
}

std::string cannot_access(int device, int other) {
  return fmt::format("device {} cannot access memory of device {}", device, other);
}

std::vector<TransportPath> paths_of_devices(const transport::Endpoint& endpoint, std::span<const int> devices,
                                            const TransportPath& host) {
  std::vector<TransportPath> paths;
  std::vector<int> direct;
  std::vector<int> staged;
  transport::Path path;
  for (const int device : devices) {
    const transport::MemoryPlace place{MemoryKind::cuda, device};
    const transport::Path its = endpoint.path(place);
    const bool is_direct = its.map || reads_directly(its, place);
    (is_direct ? direct : staged).push_back(device);
    if (is_direct) path = its;
  }
  const auto for_some = [&](const std::vector<int>& some) {
    return direct.empty() || staged.empty() ? std::string() : fmt::format("devices {}: ", fmt::join(some, ", "));
  };
  if (!direct.empty()) {
    paths.push_back({.transport = host.transport,
                     .device = path.carrier,
                     .reach = path.reach,
                     .map = path.map,
                     .read = path.read,
                     .message = host.message,
                     .gpu_direct = true,
                     .max_message_ranges = host.message ? std::size_t{1} : 0,
                     .max_read_ranges = path.read ? path.max_read_ranges : 0,
                     .max_read_bytes = path.max_read_bytes,
                     .max_reads = path.max_reads,
                     .fallback_reason = path.why_not.reason,
                     .fallback_detail = path.why_not.empty() ? "" : for_some(direct) + path.why_not.detail});
  }
  if (!staged.empty() && host.message) {
    paths.push_back({.transport = host.transport,
                     .device = host.device,
                     .reach = host.reach,
                     .message = true,
                     .max_message_ranges = 1,
                     .fallback_reason = FallbackReason::no_gpu_direct,
                     .fallback_detail = for_some(staged) + why_staged(endpoint, staged)});
  }
  return paths;
}

std::vector<RejectedPath> rejected_before(const FabricTable& table, const PeerFabrics& peer, int best) {
  std::vector<RejectedPath> rejected;
  for (const FabricTable::Row& row : table.rows) {
    if (potential_path(row.preference) >= best) continue;
    support::Fallback why = why_not(table, peer, row);
    if (!why.empty()) rejected.push_back({row.name, std::move(why)});
  }
  return rejected;
}

}  // namespace shardwire
