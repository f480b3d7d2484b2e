// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "session/remote_box.hpp"
#include "session/restore_run.hpp"

namespace shardwire {

namespace {

// Most messages that one piece may come in: each takes memory here before it is asked for.
constexpr ByteCount most_requests = 1u << 18;

// SHARDWIRE_WAY forces one way wherever it is possible; for tests and for looking into a problem.
bool way_allowed(std::string_view way) {
  const char* forced = std::getenv("SHARDWIRE_WAY");
  return forced == nullptr || *forced == '\0' || way == forced;
}

std::size_t position_of(const std::vector<std::uint32_t>& tensors, std::uint32_t tensor) {
  return static_cast<std::size_t>(std::lower_bound(tensors.begin(), tensors.end(), tensor) - tensors.begin());
}

const PlacedBox& placed_around(const PlacedBoxes& placed, const Box& box) {
  const PlacedBox* found = placed.around(box);
  if (found == nullptr) throw Error(ErrorCode::internal, "the plan names a box that its holder does not hold");
  return *found;
}

}  // namespace

void RestoreRun::bind() {
  enter(Stage::bind);
  settle_.stop();
  // One peer per source that the schedule names, with the tensors that are read from it.
  std::map<Rank, std::size_t> by_place;
  for (const ScheduledPiece& item : planning_->schedule.items) {
    const auto [entry, fresh] = by_place.emplace(item.source, peers_.size());
    if (fresh) {
      const auto& records = planning_->records;
      const auto record = std::find_if(records.begin(), records.end(),
                                       [&](const auto& one) { return one.place == to_int(item.source); });
      Peer peer;
      peer.place = item.source;
      peer.record = *record;
      peer.manifest = planning_->from.sections[item.section].manifest;
      peers_.push_back(std::move(peer));
    }
    peers_[entry->second].tensors.push_back(to_index(item.held));
  }
  pending_ = peers_.size() + 1;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    auto& tensors = peers_[i].tensors;
    std::sort(tensors.begin(), tensors.end());
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) lease_from(i);
  peer_bound();
}

void RestoreRun::lease_from(std::size_t index) {
  Peer& peer = peers_[index];
  if (peer.record.member == core_.bootstrap().rank) {
    peer.own = core_.publisher().live(options_.from);
    if (!peer.own || peer.own->generation != peer.record.generation) {
      throw Error(ErrorCode::layout_mismatch, fmt::format("'{}' was withdrawn while it was being read", options_.from));
    }
    peer.lease = core_.publisher().lease_own(*peer.own);
    peer.protocol = "this process";
    return peer_bound();
  }
  peer.link = core_.link(peer.record);
  peer.watcher = peer.link->watch(while_running([place = peer.place](const Error& reason) {
    throw Error(ErrorCode::peer_lost, fmt::format("source rank {}: {}", to_int(place), reason.what()),
                std::vector<Rank>{place});
  }));
  wire::Lease lease{next_request(), options_.from, peer.record.generation, {}};
  for (const std::uint32_t tensor : peer.tensors) lease.ranges.push_back({tensor, {}});
  auto granted = while_running([this, index](wire::Message& message) { leased(index, message); });
  peer.link->request(lease.request, lease,
                     [this, alive = std::weak_ptr<bool>(alive_), link = std::weak_ptr<Link>(peer.link),
                      granted = std::move(granted)](wire::Message& message) {
                       const auto* reply = std::get_if<wire::Leased>(&message);
                       const bool ended = alive.expired() || stage_ == Stage::stopping;
                       if (!ended || reply == nullptr) return granted(message);
                       // Too late to be used, but the source must not hold the memory for it.
                       if (const auto still = link.lock()) still->post(wire::Release{0, reply->lease});
                     });
}

void RestoreRun::leased(std::size_t index, wire::Message& message) {
  Peer& peer = peers_[index];
  peer.lease = expect<wire::Leased>(message, peer).lease;
  const transport::Fabric& fabric = core_.fabric();
  const wire::Bind request{next_request(), peer.lease, std::string(fabric.name()), fabric.domain(), fabric.address()};
  peer.link->request(request.request, request, while_running([this, index](wire::Message& reply) {
                       bound(index, expect<wire::Bound>(reply, peers_[index]));
                     }));
}

void RestoreRun::bound(std::size_t index, const wire::Bound& reply) {
  Peer& peer = peers_[index];
  const auto nonsense = [&](const char* what) {
    throw Error(ErrorCode::transport_failed, fmt::format("source rank {} gave {}", to_int(peer.place), what),
                std::vector<Rank>{peer.place});
  };
  if (reply.tensors.size() != peer.tensors.size()) nonsense("handles for other tensors than it was asked for");
  for (std::size_t i = 0; i < peer.tensors.size(); ++i) {
    const wire::TensorHandle& handle = reply.tensors[i];
    if (handle.tensor != peer.tensors[i]) nonsense("handles for other tensors than it was asked for");
    if (handle.region != wire::no_region && handle.region >= reply.regions.size())
      nonsense("a handle without a region");
  }
  peer.handles = reply.tensors;
  transport::Endpoint& endpoint = peer.link->endpoint(reply.address);
  peer.protocol = endpoint.protocol();
  peer.regions.resize(reply.regions.size());
  if (const transport::Capabilities can = core_.fabric().capabilities(); !can.mapped) {
    peer.no_map_reason = "; this fabric does not map";
    if (!can.no_map_reason.empty()) peer.no_map_reason += ": " + can.no_map_reason;
  } else if (reply.regions.empty()) {
    peer.no_map_reason = "; its memory is not in an arena";
  } else if (!way_allowed("mapped")) {
    peer.no_map_reason = "; SHARDWIRE_WAY forbids mapping";
  } else {
    for (std::size_t i = 0; i < reply.regions.size(); ++i) {
      auto region = peer.link->region(reply.regions[i]);
      if (region->mapped().empty()) {
        peer.no_map_reason = "; its memory cannot be mapped from here";
      } else {
        peer.regions[i] = std::move(region);
      }
    }
  }
  peer.max_pack_bytes = reply.max_pack_bytes;
  engine_limits_.emplace_back(static_cast<std::uint32_t>(index), reply.max_pack_bytes);
  peer_bound();
}

void RestoreRun::peer_bound() {
  if (--pending_ > 0) return;
  build_transfers();
  move_all();
}

void RestoreRun::build_transfers() {
  std::map<Rank, std::size_t> by_place;
  for (std::size_t i = 0; i < peers_.size(); ++i) by_place.emplace(peers_[i].place, i);
  transfers_.reserve(planning_->schedule.items.size());
  for (const ScheduledPiece& item : planning_->schedule.items) {
    transfers_.push_back(transfer_for(item, by_place.at(item.source)));
  }
}

move::Transfer RestoreRun::transfer_for(const ScheduledPiece& item, std::size_t index) {
  Peer& peer = peers_[index];
  const Piece& piece = planning_->plan.pieces[item.piece];
  const TensorLayout& wanted = manifest_->tensors[to_index(piece.tensor)];
  const TensorLayout& held = peer.manifest->tensors[to_index(item.held)];
  const View& view = wanted_.entries()[to_index(piece.tensor)].view;
  move::Transfer transfer;
  transfer.piece = item.piece;
  transfer.peer = static_cast<std::uint32_t>(index);
  transfer.held_tensor = to_index(item.held);
  transfer.box = planning_->schedule.box(item);
  transfer.wanted =
      placed_around(placed_.of(wanted.layout, wanted.spec.shape, wanted_.place(), view.strides), transfer.box);
  transfer.item_bytes = item_size(wanted.spec.dtype);
  transfer.target = static_cast<std::byte*>(view.data);
  if (peer.own) {
    const auto& own = peer.own->tensors[transfer.held_tensor];
    transfer.way = move::WayKind::local;
    transfer.held = placed_around(placed_.of(held.layout, held.spec.shape, peer.place, own.strides), transfer.box);
    transfer.source = own.data;
    return transfer;
  }
  use_mapped(transfer, peer, held);
  if (transfer.way == move::WayKind::mapped) return transfer;
  if (!way_allowed("packed")) {
    throw Error(ErrorCode::unsupported, fmt::format("SHARDWIRE_WAY forbids every way that reaches source rank {}{}",
                                                    to_int(peer.place), peer.no_map_reason));
  }
  const ByteCount bytes = static_cast<ByteCount>(transfer.box.volume()) * transfer.item_bytes;
  if (bytes / most_requests > peer.max_pack_bytes) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("source rank {} would send {} bytes of {} in messages of {}", to_int(peer.place), bytes,
                            to_string(held.spec.key), peer.max_pack_bytes),
                std::vector<Rank>{peer.place});
  }
  // The source packs from its own memory: where the box lies there does not matter here.
  transfer.held = memory::packed(transfer.box);
  return transfer;
}

// Makes `transfer` a mapped one where the peer's memory is; else leaves it packed.
void RestoreRun::use_mapped(move::Transfer& transfer, const Peer& peer, const TensorLayout& held) {
  transfer.way = move::WayKind::packed;
  const wire::TensorHandle& handle = peer.handles[position_of(peer.tensors, transfer.held_tensor)];
  const auto region = handle.region == wire::no_region ? nullptr : peer.regions[handle.region];
  if (!region) return;
  transfer.held = remote_box(handle, region->mapped().size(), held, peer.place, transfer.box, placed_);
  transfer.way = move::WayKind::mapped;
  transfer.source = region->mapped().data() + handle.offset_bytes;
}

}  // namespace shardwire
