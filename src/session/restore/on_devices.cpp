// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memory/device.hpp"
#include "move/device_limits.hpp"
#include "session/path_reasons.hpp"
#include "session/restore/run.hpp"

// What is different where memory of a device is on one side.
namespace shardwire {

bool RestoreRun::touches_devices(const Peer& peer) const {
  const auto on_device = [](const SourceRegion& region) {
    return region.place && region.place->kind == MemoryKind::cuda;
  };
  return !places_.empty() || std::ranges::any_of(peer.regions, on_device);
}

// Nothing is written before: somebody may still be reading what is there.
void RestoreRun::await_destination() {
  const auto events = events_of(wanted_, places_);
  if (const std::size_t managed = count_managed(places_); managed > 0) {
    core_.log(LogLevel::info,
              fmt::format("restore of '{}': {} tensors lie in managed memory, which is moved as memory of "
                          "its device",
                          options_.from, managed));
  }
  if (events.empty()) return;
  destination_ready_ = false;
  lent_events_ = std::make_shared<memory::LentEvents>(events);
  core_.copies().when_ready(lent_events_,
                            [this, waiting = std::weak_ptr<bool>(awaiting_)](const std::exception_ptr& error) {
                              if (waiting.expired() || stage_ == Stage::done) return;
                              if (error) return fail(error);
                              destination_ready_ = true;
                              if (!std::exchange(move_waits_, false) || stage_ != Stage::bind) return;
                              guarded([this] { move_all(); });
                            });
}

// What cannot be recorded ends the restore, as its deadline does: events are taken back then.
void RestoreRun::conclude() {
  const auto events = done_events_of(options_);
  if (events.empty()) return finish();
  drop_peers();  // whatever becomes of them now
  std::set<int> devices;
  for (const memory::ReadyEvent& event : events) devices.insert(event.device);
  done_events_ = std::make_shared<memory::LentEvents>(events);
  recording_ = devices.size();
  for (const int device : devices) {
    core_.copies().record(done_events_, device,
                          [this, waiting = std::weak_ptr<bool>(awaiting_)](const std::exception_ptr& error) {
                            if (waiting.expired() || stage_ == Stage::stopping || stage_ == Stage::done) return;
                            if (error) return fail(error);
                            if (--recording_ == 0) finish();
                          });
  }
}

void RestoreRun::name_targets() {
  for (Peer& peer : peers_) peer.targets.clear();
  if (places_.empty()) return;
  std::map<Rank, Peer*> by_layout_rank;
  for (Peer& peer : peers_) {
    peer.targets.resize(peer.tensors.size());
    by_layout_rank.emplace(peer.layout_rank, &peer);
  }
  for (const ScheduledPiece& item : planning_->schedule.items) {
    Peer& peer = *by_layout_rank.at(item.source);
    const std::size_t wanted = to_index(planning_->plan.pieces[item.piece].tensor);
    peer.targets[peer.position_of(to_index(item.held))].insert(device_of(places_, wanted));
  }
}

RegionAccess RestoreRun::access_into(const Peer& peer, const SourceRegion& region, std::size_t fabric, int device) {
  const RegionAccess& access = region.access[fabric];
  const auto& into = peer.connected[fabric].reads_into;
  const bool reads = device == memory::on_host || std::ranges::find(into, device) != into.end();
  const auto* const mapped = access.mapped ? region.over[fabric].get() : nullptr;
  const bool loads = mapped != nullptr && loads_from(device, mapped->mapped().place.device, mapped->has_peer_access());
  return shardwire::access_into(access, loads, reads);
}

// Host memory goes by way of pinned slots, on either side.
bool RestoreRun::loads_from(int device, int other, bool has_peer_access) {
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
    // Whoever copies asks for the access, which takes a context on the other device, away from this thread.
    const std::vector<int> peers = found.runtime ? found.runtime->details(device).peers : std::vector<int>();
    if (std::ranges::find(peers, other) != peers.end()) known->second.clear();
  } catch (const Error& error) {
    known->second += fmt::format(": {}", error.what());
  }
  return known->second.empty();
}

// Of a device with something wanted that is not read into nothing is: what a fabric can do is asked by device.
std::vector<int> RestoreRun::devices_read_into(const transport::Endpoint& endpoint, std::size_t fabric) {
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

ByteCount RestoreRun::bytes_read_by(const Peer& peer, std::size_t fabric) {
  ByteCount bytes = 0;
  for (const ScheduledPiece& item : planning_->schedule.items) {
    if (item.source != peer.layout_rank) continue;
    const std::uint32_t region = peer.handles[peer.position_of(to_index(item.held))].region;
    const std::size_t wanted = to_index(planning_->plan.pieces[item.piece].tensor);
    if (region == wire::no_region) continue;
    if (!access_into(peer, peer.regions[region], fabric, device_of(places_, wanted)).readable) continue;
    bytes += move::bytes_of_box(planning_->schedule.box(item), item_size(manifest_->tensors[wanted].spec.dtype));
  }
  return bytes;
}

void RestoreRun::prefer_reads_of_devices(Peer& peer) {
  const auto reading = std::ranges::count_if(peer.connected, [](const ConnectedFabric& one) { return one.path.read; });
  if (reading < 2 || !touches_devices(peer)) return;
  std::vector<ByteCount> bytes(peer.connected.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (peer.connected[i].path.read) bytes[i] = bytes_read_by(peer, i);
  }
  peer.read_by = reads_most(*peer.read_by, bytes);
}

// What comes by message is packed into pinned host memory there, and unpacked from it here.
void RestoreRun::offer_on_device(const move::Transfer& transfer, const TensorKey& key, const Peer& peer,
                                 move::Offer& offer) {
  offer.memory = MemoryKind::cuda;
  limit_by_devices(transfer, offer);
  if (peer.sent_by) {
    offer.ways.remove(Way::straight);
    offer.add(Way::packed, core_.fabrics().row(peer.connected[*peer.sent_by].fabric).name);
  } else if (!offer.ways.has(Way::mapped) && !offer.ways.has(Way::read) && !may_come_in_rounds(transfer)) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: memory of a device is on its way staged through host memory, and no transport that this "
                    "session has open sends messages to source rank {}: open tcp beside it",
                    to_string(key), to_int(peer.layout_rank)),
        std::vector<Rank>{peer.layout_rank});
  }
}

// What comes from elsewhere passes the bus of the device that it is wanted on, or comes from.
void RestoreRun::limit_by_devices(const move::Transfer& transfer, move::Offer& offer) {
  offer.limits.fill(move::bus_bytes_per_second);
  if (transfer.source == nullptr) return;
  const int source = transfer.source_device;
  const double memory = source == transfer.target_device ? memory_bytes_per_second(source) : 0;
  const double limit = move::device_limit(source, transfer.target_device, memory);
  for (const Way way : {Way::local, Way::mapped}) offer.limits[static_cast<std::size_t>(way)] = limit;
}

double RestoreRun::memory_bytes_per_second(int device) {
  const auto [known, fresh] = memory_speeds_.try_emplace(device, 0);
  if (!fresh) return known->second;
  try {
    const memory::FoundRuntime found = memory::device_runtime();
    if (found.runtime) known->second = found.runtime->details(device).memory_bytes_per_second;
  } catch (const Error&) {  // whoever copies there says why
  }
  return known->second;
}

void RestoreRun::explain_local(const move::Transfer& transfer) {
  const bool has_peer_access = !transfer.source_apart;
  if (loads_from(transfer.target_device, transfer.source_device, has_peer_access)) return;
  const std::string& why = why_not_loaded_.at({transfer.target_device, transfer.source_device, has_peer_access});
  peers_[transfer.peer].no_map_reason = "; device memory is " + staged_because({why});
}

// Whether memory of a device is on either side, and messages carry it.
bool RestoreRun::is_staged(const Peer& peer, std::size_t position) {
  const std::uint32_t number = peer.handles[position].region;
  const SourceRegion* region = number == wire::no_region ? nullptr : &peer.regions[number];
  const bool source_on_device = region != nullptr && region->place && region->place->kind == MemoryKind::cuda;
  const auto is_direct = [&](int device) {
    bool direct = false;
    for (std::size_t i = 0; region != nullptr && i < region->access.size(); ++i) {
      const RegionAccess access = access_into(peer, *region, i, device);
      direct = direct || access.mapped || access.readable;
    }
    return direct;
  };
  return std::ranges::any_of(peer.targets_of(position), [&](int device) {
    return (source_on_device || device != memory::on_host) && !is_direct(device);
  });
}

std::optional<std::vector<std::string>> RestoreRun::why_not_direct(const Peer& peer) {
  if (!touches_devices(peer)) return std::nullopt;
  std::size_t staged = 0;
  while (staged < peer.handles.size() && !is_staged(peer, staged)) ++staged;
  if (staged == peer.handles.size()) return std::nullopt;
  std::vector<std::string> reasons;
  if (const std::uint32_t number = peer.handles[staged].region; number != wire::no_region) {
    for (const auto& one : peer.regions[number].over) {
      if (one && !one->why_not_mapped().empty()) reasons.push_back(one->why_not_mapped());
    }
  }
  for (const auto& [devices, why] : why_not_loaded_) {
    if (!why.empty()) reasons.push_back(why);
  }
  reasons.insert(reasons.end(), why_not_into_.begin(), why_not_into_.end());
  return reasons;
}

void RestoreRun::explain_staged(Peer& peer) {
  const auto reasons = peer.sent_by ? why_not_direct(peer) : std::nullopt;
  if (!reasons) return;
  const auto& sender = *peer.connected[*peer.sent_by].channel->endpoint;
  peer.no_map_reason = "; device memory is " + why_staged(sender, devices_of(places_), *reasons) + peer.no_map_reason;
}

}  // namespace shardwire
