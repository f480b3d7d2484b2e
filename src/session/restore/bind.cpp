// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "session/restore/remote_box.hpp"
#include "session/restore/run.hpp"

namespace shardwire {

namespace {

// Most messages that one piece may come in: each takes memory here before it is asked for.
constexpr ByteCount max_messages_per_piece = 1u << 18;

const PlacedBox& placed_around(const PlacedBoxes& placed, const Box& box) {
  const PlacedBox* found = placed.around(box);
  if (found == nullptr) throw Error(ErrorCode::internal, "the plan names a box that its holder does not hold");
  return *found;
}

}  // namespace

void RestoreRun::bind() {
  enter(Stage::bind);
  discovery_grace_.stop();
  if (CachedRestore* cached = repetition_.cached()) {
    peers_ = std::move(cached->peers);
    for (Peer& peer : peers_) {
      const auto& records = planning_->records;
      peer.record = *std::find_if(records.begin(), records.end(),
                                  [&](const auto& one) { return one.layout_rank == to_int(peer.layout_rank); });
    }
    if (!options_.bind_only && !grouped_) repetition_.choose(options_, wanted_, peers_);
  } else {
    name_peers();
  }
  name_targets();
  pending_ = peers_.size() + 1;
  for (std::size_t i = 0; i < peers_.size(); ++i) lease_from(i);
  peer_bound();
}

// One peer per source that the schedule names, with the tensors that are read from it.
void RestoreRun::name_peers() {
  std::map<Rank, std::size_t> by_layout_rank;
  for (const ScheduledPiece& item : planning_->schedule.items) {
    const auto [entry, fresh] = by_layout_rank.emplace(item.source, peers_.size());
    if (fresh) {
      const auto& records = planning_->records;
      const auto record = std::find_if(records.begin(), records.end(),
                                       [&](const auto& one) { return one.layout_rank == to_int(item.source); });
      Peer peer;
      peer.layout_rank = item.source;
      peer.record = *record;
      peer.manifest = planning_->from.sections[item.section].manifest;
      peers_.push_back(std::move(peer));
    }
    peers_[entry->second].tensors.push_back(to_index(item.held));
  }
  for (Peer& peer : peers_) {
    auto& tensors = peer.tensors;
    std::sort(tensors.begin(), tensors.end());
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  }
}

void RestoreRun::lease_from(std::size_t index) {
  Peer& peer = peers_[index];
  if (peer.record.member == core_.member()) {
    peer.own = core_.publisher().live(options_.from);
    if (!peer.own || peer.own->generation != peer.record.generation) {
      throw Error(ErrorCode::withdrawn, fmt::format("'{}' was withdrawn while it was being read", options_.from),
                  std::vector<Rank>{peer.layout_rank});
    }
    try {
      for (const std::uint32_t tensor : peer.tensors) peer.own->require_still_there(tensor);
    } catch (const Error& error) {
      throw Error(error.code(), error.what(), std::vector<Rank>{peer.layout_rank});
    }
    peer.lease = core_.publisher().lease_own(*peer.own);
    if (peer.bound_generation != peer.record.generation) repetition_.bound_anew();
    peer.bound_generation = peer.record.generation;
    return peer_bound();
  }
  const auto link = core_.links().link(peer.record);
  if (peer.link != link) {
    if (repetition_.optimistic()) {
      throw Error(ErrorCode::peer_lost, "a source went while it was bound again", std::vector<Rank>{peer.layout_rank});
    }
    peer.bound_generation = 0;
  }
  peer.link = link;
  peer.watcher = peer.link->watch(while_running([layout_rank = peer.layout_rank](const Error& reason) {
    throw Error(ErrorCode::peer_lost, fmt::format("source rank {}: {}", to_int(layout_rank), reason.what()),
                std::vector<Rank>{layout_rank});
  }));
  if (repetition_.unleased()) return peer_bound();
  wire::Lease lease{next_request(), options_.from, peer.record.generation, {}};
  for (const std::uint32_t tensor : peer.tensors) lease.ranges.push_back({tensor, {}});
  auto granted = while_running([this, index](wire::Message& message) { leased(index, message); });
  ++peer.unanswered;
  peer.link->request(lease.request, lease,
                     [this, alive = std::weak_ptr<bool>(alive_), link = std::weak_ptr<Link>(peer.link),
                      granted = std::move(granted)](wire::Message& message) {
                       const auto* reply = std::get_if<wire::Leased>(&message);
                       const bool ended = alive.expired() || stage_ == Stage::stopping;
                       if (!ended || reply == nullptr) return granted(message);
                       // Too late to be used, but the source must not hold the memory for it.
                       if (const auto still = link.lock()) still->post(wire::Release{0, reply->lease});
                     });
  if (!repetition_.optimistic()) return;
  repetition_.lease_requested();
  peer_bound();
}

void RestoreRun::leased(std::size_t index, wire::Message& message) {
  Peer& peer = peers_[index];
  --peer.unanswered;
  peer.lease = expect<wire::Leased>(message, peer).lease;
  if (repetition_.optimistic()) {
    repetition_.lease_granted();
    if (!repetition_.awaits_leases() && stage_ == Stage::verify) release_all();
    return;
  }
  const bool reaches = places_.empty() || worst_path(peer) != no_path;  // they may have been elsewhere before
  const bool suffices = peer.sent_by || (!wants_messages() && reaches);
  if (suffices && peer.still_connected() && peer.bound_generation == peer.record.generation) return peer_bound();
  connect(index);
}

void RestoreRun::peer_bound() {
  if (--pending_ == 0) bound_all();
}

void RestoreRun::bound_all() {
  // Where bytes may come in rounds, all members are asked each time.
  if (!grouped_ && repetition_.same_transfers(options_, wanted_)) {
    transfers_ = std::move(repetition_.cached()->transfers);
    predictions_ = std::move(repetition_.cached()->predictions);
  } else {
    build_transfers();
    if (grouped_) return ask_for_rounds();
    settle_transfers();
  }
  begin_to_move();
}

void RestoreRun::begin_to_move() {
  log_plan();
  if (!options_.bind_only) {
    move_waits_ = !destination_ready_;
    if (!move_waits_) move_all();
    return;
  }
  enter(Stage::verify);
  release_all();
}

void RestoreRun::build_transfers() {
  std::map<Rank, std::size_t> by_layout_rank;
  for (std::size_t i = 0; i < peers_.size(); ++i) by_layout_rank.emplace(peers_[i].layout_rank, i);
  const auto& items = planning_->schedule.items;
  offers_.assign(items.size(), {});
  offered_ = std::make_shared<std::vector<move::Transfer>>();
  offered_->reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    offered_->push_back(transfer_for(items[i], by_layout_rank.at(items[i].source), offers_[i]));
  }
}

// Gives each its way, out of those that are possible.
void RestoreRun::settle_transfers() {
  const auto transfers = std::exchange(offered_, nullptr);
  choose_ways(*transfers, std::exchange(offers_, {}));
  for (const move::Transfer& transfer : *transfers) check_messages(transfer);
  transfers_ = transfers;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    peer.expected = i < predictions_.peers.size() ? predictions_.peers[i] : decltype(peer.expected){};
    const double seconds = i < predictions_.unmapped_seconds.size() ? predictions_.unmapped_seconds[i] : 0;
    peer.no_map_cost = peer.no_map_reason.empty() || seconds <= 0
                           ? std::string()
                           : fmt::format(" (an estimated {:.3g} s more than with mapped memory)", seconds);
  }
  log_paths();
}

void RestoreRun::choose_ways(std::vector<move::Transfer>& transfers, const std::vector<move::Offer>& offers) {
  try {
    predictions_ = move::choose_ways(transfers, offers, core_.costs(), options_.way);
  } catch (const move::ImpossibleWay& error) {
    const move::Transfer& transfer = transfers[error.transfer];
    const Peer& peer = peers_[transfer.peer];
    const TensorKey& key = manifest_->tensors[to_index(planning_->plan.pieces[transfer.piece].tensor)].spec.key;
    throw Error(
        peer.lacked_resources ? ErrorCode::out_of_resources : ErrorCode::unsupported,
        fmt::format(
            "the way '{}', which the caller has chosen, cannot move {} {} from source rank {} (member {}): {}{}",
            to_string(error.forced), to_string(key), to_string(transfer.box), to_int(peer.layout_rank),
            peer.record.member, error.what(),
            error.forced == Way::grouped ? why_not_in_rounds(transfer) : peer.no_map_reason),
        std::vector<Rank>{peer.layout_rank});
  }
}

void RestoreRun::log_plan() const {
  ByteCount bytes = 0;
  for (const move::Transfer& transfer : *transfers_) bytes += move::bytes_of(transfer);
  core_.log(LogLevel::info,
            fmt::format("restore of '{}' as layout rank {}: {} pieces, {} bytes from {} sources", options_.from,
                        to_int(wanted_.layout_rank()), transfers_->size(), bytes, peers_.size()));
}

// The path to each peer: what carries the bytes, how, and why nothing is mapped where nothing is.
void RestoreRun::log_paths() const {
  std::vector<std::map<Way, ByteCount>> ways(peers_.size());
  for (const move::Transfer& transfer : *transfers_) ways[transfer.peer][transfer.way] += move::bytes_of(transfer);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_[i];
    std::string moved;
    for (const auto& [way, bytes] : ways[i]) {
      moved += fmt::format("{}{} bytes {}", moved.empty() ? "" : ", ", bytes, to_string(way));
    }
    std::string carriers = peer.own ? "this process" : "";
    for (const ConnectedFabric& one : peer.connected) {
      carriers += fmt::format("{}{}", carriers.empty() ? "" : ", ", one.path.carrier);
    }
    core_.log(LogLevel::info, fmt::format("path to source rank {}, member {}: {}: {}{}", to_int(peer.layout_rank),
                                          peer.record.member, carriers, moved, peer.no_map_reason));
  }
}

// Binds one piece to addresses, and says which ways are possible.
move::Transfer RestoreRun::transfer_for(const ScheduledPiece& item, std::size_t index, move::Offer& offer) {
  const Peer& peer = peers_[index];
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
      placed_around(placed_.of(wanted.layout, wanted.spec.shape, wanted_.layout_rank(), view.strides), transfer.box);
  transfer.item_bytes = item_size(wanted.spec.dtype);
  transfer.target = static_cast<std::byte*>(view.data);
  transfer.target_device = device_of(places_, to_index(piece.tensor));
  if (peer.own) {
    const auto& own = peer.own->tensors[transfer.held_tensor];
    offer.ways = {Way::local};
    transfer.held =
        placed_around(placed_.of(held.layout, held.spec.shape, peer.layout_rank, own.strides), transfer.box);
    transfer.source = own.data;
    transfer.source_device = own.device();
    transfer.source_apart = own.place && !own.place->peer_access;
    if (move::is_on_device(transfer)) {
      offer.memory = MemoryKind::cuda;
      limit_by_devices(transfer, offer);
      explain_local(transfer);
    }
    return transfer;
  }
  const auto name_of = [&](const ConnectedFabric& one) { return core_.fabrics().row(one.fabric).name; };
  const auto offer_messages = [&] {
    offer.add(Way::packed, name_of(peer.connected[*peer.sent_by]));
    offer.add(Way::straight, name_of(peer.connected[*peer.sent_by]));
  };
  offer.memory = MemoryKind::host;
  for (const ConnectedFabric& one : peer.connected) {
    if (one.path.map) offer.carrier(Way::mapped) = name_of(one);  // what it would cost, where it is not possible
  }
  const wire::TensorHandle& handle = peer.handles[peer.position_of(transfer.held_tensor)];
  if (handle.region == wire::no_region) {
    if (peer.sent_by) offer_messages();
    // How it lies there matters for the choice only: the source packs or sends from its own memory.
    transfer.held =
        remote_box(handle, std::numeric_limits<ByteCount>::max(), held, peer.layout_rank, transfer.box, placed_);
    if (transfer.target_device != memory::on_host) offer_on_device(transfer, wanted.spec.key, peer, offer);
    return transfer;
  }
  const SourceRegion& region = peer.regions[handle.region];
  if (region.place) offer.memory = region.place->kind;
  const bool on_device = transfer.target_device != memory::on_host || offer.memory == MemoryKind::cuda;
  if (!on_device && peer.sent_by && region.access[*peer.sent_by].message) offer_messages();
  transport::ConstMemory mapped;
  for (std::size_t i = 0; i < region.over.size() && mapped.empty(); ++i) {
    if (!access_into(peer, region, i, transfer.target_device).mapped) continue;
    mapped = region.over[i]->mapped();
    offer.carrier(Way::mapped) = name_of(peer.connected[i]);
  }
  // What is mapped counts, not what this answer says: the region may be known from an earlier one.
  const ByteCount bytes = mapped.empty() ? region.bytes : mapped.bytes;
  transfer.held = remote_box(handle, bytes, held, peer.layout_rank, transfer.box, placed_);
  if (!mapped.empty()) {
    transfer.source = mapped.address + handle.offset_bytes;
    transfer.source_device = mapped.place.device;
    offer.ways.add(Way::mapped);
  }
  if (peer.read_by && *peer.read_by < region.over.size() && region.access[*peer.read_by].readable) {
    transfer.region = region.over[*peer.read_by].get();
    transfer.region_offset = handle.offset_bytes;
    // Across gaps it goes into host memory first, wherever it is wanted.
    offer.add(Way::over_read, name_of(peer.connected[*peer.read_by]));
    const bool straight = access_into(peer, region, *peer.read_by, transfer.target_device).readable;
    if (straight) offer.add(Way::read, name_of(peer.connected[*peer.read_by]));
  }
  if (on_device) offer_on_device(transfer, wanted.spec.key, peer, offer);
  return transfer;
}

void RestoreRun::check_messages(const move::Transfer& transfer) const {
  if (transfer.way != Way::packed) return;
  const Peer& peer = peers_[transfer.peer];
  if (move::bytes_of(transfer) / max_messages_per_piece <= peer.max_pack_bytes) return;
  const TensorLayout& held = peer.manifest->tensors[transfer.held_tensor];
  throw Error(ErrorCode::transport_failed,
              fmt::format("source rank {} would send {} bytes of {} in messages of {}", to_int(peer.layout_rank),
                          move::bytes_of(transfer), to_string(held.spec.key), peer.max_pack_bytes),
              std::vector<Rank>{peer.layout_rank});
}

}  // namespace shardwire
