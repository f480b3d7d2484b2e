// SPDX-License-Identifier: Apache-2.0
#include "restore/device_reach.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "paths/path_reasons.hpp"

namespace shardwire::restore {

std::optional<UnfitTarget> unfit_target(const transport::Endpoint& endpoint, const TensorPlaces& places, int device) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!places[i] || places[i]->device != device) continue;
    if (std::string why = endpoint.why_not_into(*places[i]); !why.empty()) return UnfitTarget{i, std::move(why)};
  }
  return std::nullopt;
}

bool DeviceReach::touches_devices(const Binding& binding) const {
  const auto on_device = [](const SourceRegion& region) {
    return region.place && region.place->kind == MemoryKind::cuda;
  };
  return wants_devices() || std::ranges::any_of(binding.regions, on_device);
}

RegionAccess DeviceReach::access_into(const Binding& binding, const SourceRegion& region, std::size_t fabric,
                                      int device) {
  const RegionAccess& access = region.access[fabric];
  const auto& into = binding.connected[fabric].reads_into;
  const bool reads = device == memory::on_host || std::ranges::find(into, device) != into.end();
  const auto* const mapped = access.mapped ? region.over[fabric].get() : nullptr;
  const bool loads = mapped != nullptr && loads_from(device, mapped->mapped().place.device, mapped->has_peer_access());
  return shardwire::access_into(access, loads, reads);
}

// Copies between host and device go through pinned slots.
bool DeviceReach::loads_from(int device, int other, bool has_peer_access) {
  if (device == memory::on_host || other == memory::on_host || device == other) return true;
  const auto [known, fresh] = why_not_loaded_.try_emplace({device, other, has_peer_access});
  if (!fresh) return known->second.empty();
  known->second = cannot_access(device, other);
  if (!has_peer_access) {
    known->second += " that was mapped (expandable segments) or is of a pool: its owner has to open it";
    return false;
  }
  try {
    const memory::FoundRuntime found = memory::device_runtime();
    // Queries the driver only; the copies enable the access, which creates a context on the other device, on their own
    // thread.
    const std::vector<int> peers = found.runtime ? found.runtime->details(device).peers : std::vector<int>();
    if (std::ranges::find(peers, other) != peers.end()) known->second.clear();
  } catch (const Error& error) {
    known->second += fmt::format(": {}", error.what());
  }
  return known->second.empty();
}

const std::string& DeviceReach::why_not_loaded(int device, int other, bool has_peer_access) const {
  return why_not_loaded_.at({device, other, has_peer_access});
}

std::vector<int> DeviceReach::devices_read_into(const transport::Endpoint& endpoint, std::size_t fabric) {
  std::vector<int> devices;
  if (!memory::devices_in_use()) return devices;
  const memory::FoundRuntime found = memory::device_runtime();
  const int count = found.runtime ? found.runtime->device_count() : 0;
  for (int device = 0; device < count; ++device) {
    const transport::MemoryPlace place{MemoryKind::cuda, device};
    if (!reads_directly(endpoint.path(place), place)) continue;
    const auto [fits, fresh] = fits_fabric_.try_emplace({fabric, device}, true);
    if (fresh) {
      if (const auto unfit = unfit_target(endpoint, places_, device)) {
        fits->second = false;
        why_not_into_.insert(fmt::format("{}: {}", to_string(wanted_.entries()[unfit->entry].spec.key), unfit->why));
      }
    }
    if (fits->second) devices.push_back(device);
  }
  return devices;
}

double DeviceReach::memory_bytes_per_second(int device) {
  const auto [known, fresh] = memory_speeds_.try_emplace(device, 0);
  if (!fresh) return known->second;
  try {
    const memory::FoundRuntime found = memory::device_runtime();
    if (found.runtime) known->second = found.runtime->details(device).memory_bytes_per_second;
  } catch (const Error&) {  // the copy on that device reports the error
  }
  return known->second;
}

bool DeviceReach::is_staged(const Binding& binding, std::size_t position) {
  const SourceRegion* region = binding.region_of(position);
  const bool source_on_device = region != nullptr && region->place && region->place->kind == MemoryKind::cuda;
  const auto is_direct = [&](int device) {
    bool direct = false;
    for (std::size_t i = 0; region != nullptr && i < region->access.size(); ++i) {
      const RegionAccess access = access_into(binding, *region, i, device);
      direct = direct || access.mapped || access.readable;
    }
    return direct;
  };
  return std::ranges::any_of(binding.targets_of(position), [&](const auto& target) {
    return (source_on_device || target.first != memory::on_host) && !is_direct(target.first);
  });
}

std::optional<std::vector<std::string>> DeviceReach::why_not_direct(const Binding& binding) {
  if (!touches_devices(binding)) return std::nullopt;
  std::size_t staged = 0;
  while (staged < binding.handles.size() && !is_staged(binding, staged)) ++staged;
  if (staged == binding.handles.size()) return std::nullopt;
  std::vector<std::string> reasons;
  if (const SourceRegion* region = binding.region_of(staged)) {
    for (const auto& one : region->over) {
      if (one && !one->why_not_mapped().empty()) reasons.push_back(one->why_not_mapped());
    }
  }
  for (const auto& [devices, why] : why_not_loaded_) {
    if (!why.empty()) reasons.push_back(why);
  }
  reasons.insert(reasons.end(), why_not_into_.begin(), why_not_into_.end());
  return reasons;
}

ByteCount DeviceReach::bytes_read_by(const Binding& binding, std::size_t fabric) {
  ByteCount bytes = 0;
  for (std::size_t i = 0; i < binding.tensors.size(); ++i) {
    const SourceRegion* region = binding.region_of(i);
    if (region == nullptr) continue;
    for (const auto& [device, wanted] : binding.targets_of(i)) {
      if (access_into(binding, *region, fabric, device).readable) bytes += wanted;
    }
  }
  return bytes;
}

}  // namespace shardwire::restore
