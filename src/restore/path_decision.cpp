// SPDX-License-Identifier: Apache-2.0
#include "restore/path_decision.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "paths/path_reasons.hpp"

namespace shardwire::restore {

namespace {

int path_of(const Binding& binding, const SourceRegion& region, int device, const PathInputs& inputs) {
  int best = no_path;
  for (std::size_t i = 0; i < region.access.size(); ++i) {
    best = best_path(best, inputs.fabrics.preference(binding.connected[i].fabric),
                     inputs.reach.access_into(binding, region, i, device));
  }
  return best;
}

// Part of the memory has no path, and does not come in rounds either.
bool lacks_path(const Binding& binding, const PathInputs& inputs) {
  if (worst_path(binding, inputs) != no_path) return false;
  for (std::size_t i = 0; i < binding.handles.size(); ++i) {
    const SourceRegion* region = binding.region_of(i);
    for (const auto& [device, bytes] : binding.targets_of(i)) {
      const int path = region == nullptr ? binding.unregistered_path : path_of(binding, *region, device, inputs);
      if (path == no_path && !may_come_in_rounds(binding, i, device, inputs.rounds)) return true;
    }
  }
  return binding.handles.empty();
}

std::vector<RejectedPath> rejected_before(const Binding& binding, const PathInputs& inputs, int best) {
  return shardwire::rejected_before(inputs.fabrics, fabrics_of(binding), best);
}

ErrorCode code_of_refusal(const Binding& binding) {
  if (binding.lacked_resources) return ErrorCode::out_of_resources;
  if (binding.peer_ended) return ErrorCode::peer_lost;
  return binding.failed_fabrics.empty() ? ErrorCode::unsupported : ErrorCode::transport_failed;
}

[[noreturn]] void refuse(const Binding& binding, const PathInputs& inputs) {
  std::vector<RejectedPath> rejected = rejected_before(binding, inputs, no_path);
  if (const auto reasons = inputs.reach.why_not_direct(binding)) {
    for (const std::string& one : *reasons) rejected.push_back({"", {FallbackReason::no_gpu_direct, one}});
    rejected.push_back({"",
                        {FallbackReason::no_gpu_direct,
                         "memory of a device that is neither mapped nor read needs messages: open tcp too"}});
  }
  const std::string why = to_text(rejected);
  throw Error(code_of_refusal(binding),
              fmt::format("no transport of this session carries the bytes of source rank {} (member {}){}{}",
                          to_int(binding.layout_rank), binding.record.member, why.empty() ? "" : "; ", why),
              std::vector<Rank>{binding.layout_rank});
}

std::optional<std::size_t> best_of(const Binding& binding, const FabricTable& fabrics, bool transport::Path::*can,
                                   int transport::Preference::*rank) {
  std::optional<std::size_t> chosen;
  const auto rank_of = [&](std::size_t one) { return fabrics.preference(binding.connected[one].fabric).*rank; };
  for (std::size_t i = 0; i < binding.connected.size(); ++i) {
    if (binding.connected[i].path.*can && (!chosen || rank_of(i) < rank_of(*chosen))) chosen = i;
  }
  return chosen;
}

// Another fabric may read less host memory, but more device memory.
std::size_t prefer_reads_of_devices(const Binding& binding, DeviceReach& reach, std::size_t preferred) {
  const auto reading =
      std::ranges::count_if(binding.connected, [](const ConnectedFabric& one) { return one.path.read; });
  if (reading < 2 || !reach.touches_devices(binding)) return preferred;
  std::vector<ByteCount> bytes(binding.connected.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (binding.connected[i].path.read) bytes[i] = reach.bytes_read_by(binding, i);
  }
  return reads_most(preferred, bytes);
}

// Reasons for a staging copy or a message.
std::vector<RejectedPath> why_not_mapped(const Binding& binding, const PathInputs& inputs,
                                         std::optional<std::size_t> sent_by) {
  const auto is_mapped = [&](const wire::TensorHandle& handle) {
    return handle.region != wire::no_region &&
           std::ranges::any_of(binding.regions[handle.region].access, &RegionAccess::mapped);
  };
  if (std::ranges::all_of(binding.handles, is_mapped)) return {};
  const bool maps = std::ranges::any_of(binding.connected, [](const ConnectedFabric& one) { return one.path.map; });
  if (maps) {
    std::vector<RejectedPath> rejected{{"", {FallbackReason::not_in_arena, "its memory is not in an arena"}}};
    for (const ConnectedFabric& one : binding.connected) {
      if (one.path.map && !one.path.read) rejected.push_back({"", one.path.why_not});
    }
    return rejected;
  }
  std::vector<RejectedPath> rejected = rejected_before(binding, inputs, worst_path(binding, inputs));
  if (rejected.empty() && sent_by) rejected.push_back({"", binding.connected[*sent_by].path.why_not});
  return rejected;
}

void add_access(SourceRegion& known, const wire::RegionHandle& handle, std::shared_ptr<transport::RemoteRegion> region,
                const transport::Endpoint& endpoint, const transport::Path& host_path) {
  const auto place = place_of(handle);
  const transport::Path path = place ? endpoint.path(*place) : transport::Path{};
  RegionAccess access = place ? access_to(path, *place, region.get()) : RegionAccess{};
  if (place && place->kind == MemoryKind::cuda) access.message = host_path.message;  // staged through host memory
  if (access.mapped) known.mapped_by = path.carrier;
  known.bytes = handle.size_bytes;
  known.place = place;
  known.over.push_back(std::move(region));
  known.access.push_back(access);
}

// Devices of wanted memory.
std::vector<int> devices_wanted(const Binding& binding) {
  std::set<int> devices;
  for (std::size_t i = 0; i < binding.tensors.size(); ++i) {
    for (const auto& [device, bytes] : binding.targets_of(i)) devices.insert(device);
  }
  devices.erase(memory::on_host);
  return {devices.begin(), devices.end()};
}

}  // namespace

bool may_come_in_rounds(const Binding& binding, std::size_t position, int target_device, const RoundsGroup* rounds) {
  if (rounds == nullptr || binding.is_own()) return false;
  const auto source = binding.device_at_source(position);
  return source && rounds->carries(binding.record.member, *source, target_device);
}

int worst_path(const Binding& binding, const PathInputs& inputs) {
  if (binding.handles.empty()) return binding.tensors.empty() ? 0 : no_path;
  int worst = 0;
  std::set<std::pair<std::uint32_t, int>> known;  // regions, with their target devices
  for (std::size_t i = 0; i < binding.handles.size(); ++i) {
    const std::uint32_t region = binding.handles[i].region;
    if (region == wire::no_region) {
      worst = std::max(worst, binding.unregistered_path);
      continue;
    }
    for (const auto& [device, bytes] : binding.targets_of(i)) {
      if (!known.emplace(region, device).second) continue;
      worst = std::max(worst, path_of(binding, binding.regions[region], device, inputs));
    }
  }
  return worst;
}

void add_fabric(Binding& binding, BoundFabric bound, const PathInputs& inputs) {
  const wire::Bound& reply = bound.reply;
  const transport::Path path = bound.path;
  transport::Endpoint& endpoint = *bound.channel->endpoint;
  auto reads_into = inputs.reach.devices_read_into(endpoint, bound.fabric);
  binding.connected.push_back({bound.fabric, path, std::move(bound.channel), std::move(reads_into)});
  binding.max_pack_bytes = reply.max_pack_bytes;
  binding.digests = reply.digests;
  binding.handles = reply.tensors;
  binding.regions.resize(reply.regions.size());
  binding.keys.merge(bound.keys);
  for (std::size_t i = 0; i < reply.regions.size(); ++i) {
    add_access(binding.regions[i], reply.regions[i], std::move(bound.regions[i]), endpoint, path);
  }
  binding.unregistered_path =
      best_path(binding.unregistered_path, inputs.fabrics.preference(bound.fabric), {.message = path.message});
  const bool readable = bound.word.is_mapped() || path.read;
  const bool better = !binding.word.region || (!binding.word.is_mapped() && bound.word.is_mapped());
  if (bound.word.region && readable && better) binding.word = std::move(bound.word);
}

PathDecision decide_path(const Binding& binding, const PathInputs& inputs) {
  if (lacks_path(binding, inputs)) refuse(binding, inputs);
  PathDecision decision;
  decision.read_by = best_of(binding, inputs.fabrics, &transport::Path::read, &transport::Preference::read);
  if (decision.read_by) decision.read_by = prefer_reads_of_devices(binding, inputs.reach, *decision.read_by);
  decision.sent_by = best_of(binding, inputs.fabrics, &transport::Path::message, &transport::Preference::message);
  decision.rejected = why_not_mapped(binding, inputs, decision.sent_by);
  const auto reasons = decision.sent_by ? inputs.reach.why_not_direct(binding) : std::nullopt;
  if (reasons) {
    const transport::Endpoint& sender = *binding.connected[*decision.sent_by].channel->endpoint;
    decision.rejected.insert(
        decision.rejected.begin(),
        {"",
         {FallbackReason::no_gpu_direct, "device memory is " + why_staged(sender, devices_wanted(binding), *reasons)}});
  }
  return decision;
}

}  // namespace shardwire::restore
