// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>

#include "session/restore/remote_box.hpp"
#include "session/restore/run.hpp"

namespace shardwire {

namespace {

// Most messages that one piece may come in: each takes memory here before it is asked for.
constexpr ByteCount max_messages_per_piece = 1u << 18;

std::size_t position_of(const std::vector<std::uint32_t>& tensors, std::uint32_t tensor) {
  return static_cast<std::size_t>(std::lower_bound(tensors.begin(), tensors.end(), tensor) - tensors.begin());
}

// Without one the source is asked.
GenerationWord word_of(Link& link, const wire::Bound& reply) {
  if (!reply.word) return {};
  try {
    auto region = link.region(reply.word->region);
    if (!is_generation_word(reply.word->offset_bytes, region->mapped().bytes)) return {};
    return {std::move(region), reply.word->offset_bytes};
  } catch (const Error&) {
    return {};
  }
}

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
    repetition_.choose(options_, wanted_, peers_);
  } else {
    name_peers();
  }
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
    peer.lease = core_.publisher().lease_own(*peer.own);
    peer.path = {.carrier = "this process", .reach = Reach::process};
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
  if (peer.bound_generation == peer.record.generation) return peer_bound();
  const transport::Fabric& fabric = core_.fabric();
  const wire::Bind request{next_request(), peer.lease, std::string(fabric.name()), fabric.domain(), fabric.address()};
  ++peer.unanswered;
  peer.link->request(request.request, request, while_running([this, index](wire::Message& reply) {
                       --peers_[index].unanswered;
                       bound(index, expect<wire::Bound>(reply, peers_[index]));
                     }));
}

void RestoreRun::bound(std::size_t index, const wire::Bound& reply) {
  Peer& peer = peers_[index];
  const auto nonsense = [&](const char* what) {
    throw Error(ErrorCode::transport_failed, fmt::format("source rank {} gave {}", to_int(peer.layout_rank), what),
                std::vector<Rank>{peer.layout_rank});
  };
  if (reply.tensors.size() != peer.tensors.size()) nonsense("handles for other tensors than it was asked for");
  for (std::size_t i = 0; i < peer.tensors.size(); ++i) {
    const wire::TensorHandle& handle = reply.tensors[i];
    if (handle.tensor != peer.tensors[i]) nonsense("handles for other tensors than it was asked for");
    if (handle.region != wire::no_region && handle.region >= reply.regions.size())
      nonsense("a handle without a region");
  }
  if (options_.verify == Verify::digest && !peer.link->peer_can("straight")) {
    throw Error(ErrorCode::unsupported,
                fmt::format("source rank {} does not send digests along: all members need this version",
                            to_int(peer.layout_rank)),
                std::vector<Rank>{peer.layout_rank});
  }
  repetition_.bound_anew();
  peer.bound_generation = peer.record.generation;
  peer.handles = reply.tensors;
  peer.no_map_reason.clear();
  peer.region_bytes.clear();
  peer.regions.clear();
  transport::Endpoint& endpoint = peer.link->endpoint(reply.address);
  peer.path = endpoint.path({});
  peer.regions.resize(reply.regions.size());
  for (const wire::RegionHandle& region : reply.regions) peer.region_bytes.push_back(region.size_bytes);
  if (!peer.path.map && !peer.path.read) {
    peer.no_map_reason = "; " + peer.path.why_not;
  } else if (reply.regions.empty()) {
    peer.no_map_reason = "; its memory is not in an arena";
  } else {
    for (std::size_t i = 0; i < reply.regions.size(); ++i) {
      peer.regions[i] = peer.link->region(reply.regions[i]);
      if (peer.path.map && peer.regions[i]->mapped().empty())
        peer.no_map_reason = "; its memory cannot be mapped from here";
    }
  }
  peer.word = word_of(*peer.link, reply);
  std::set<Bytes> keys;
  for (const wire::RegionHandle& region : reply.regions) keys.insert(region.key);
  if (reply.word) keys.insert(reply.word->region.key);
  peer.link->bound(options_.from, peer.record.generation, std::move(keys));
  peer.max_pack_bytes = reply.max_pack_bytes;
  peer_bound();
}

void RestoreRun::peer_bound() {
  if (--pending_ == 0) bound_all();
}

void RestoreRun::bound_all() {
  if (repetition_.same_transfers(options_, wanted_)) {
    transfers_ = std::move(repetition_.cached()->transfers);
    predictions_ = std::move(repetition_.cached()->predictions);
  } else {
    build_transfers();
    log_paths();
  }
  log_plan();
  move_all();
}

void RestoreRun::build_transfers() {
  std::map<Rank, std::size_t> by_layout_rank;
  for (std::size_t i = 0; i < peers_.size(); ++i) by_layout_rank.emplace(peers_[i].layout_rank, i);
  const auto& items = planning_->schedule.items;
  std::vector<move::Offer> offers(items.size());
  auto transfers = std::make_shared<std::vector<move::Transfer>>();
  transfers->reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    transfers->push_back(transfer_for(items[i], by_layout_rank.at(items[i].source), offers[i]));
  }
  choose_ways(*transfers, offers);
  for (const move::Transfer& transfer : *transfers) check_messages(transfer);
  transfers_ = std::move(transfers);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    const double seconds = i < predictions_.unmapped_seconds.size() ? predictions_.unmapped_seconds[i] : 0;
    peer.no_map_cost = peer.no_map_reason.empty() || seconds <= 0
                           ? std::string()
                           : fmt::format(" (an estimated {:.3g} s more than with mapped memory)", seconds);
  }
}

void RestoreRun::choose_ways(std::vector<move::Transfer>& transfers, const std::vector<move::Offer>& offers) {
  try {
    predictions_ = move::choose_ways(transfers, offers, core_.costs(), options_.way);
  } catch (const move::ImpossibleWay& error) {
    const move::Transfer& transfer = transfers[error.transfer];
    const Peer& peer = peers_[transfer.peer];
    const TensorKey& key = manifest_->tensors[to_index(planning_->plan.pieces[transfer.piece].tensor)].spec.key;
    throw Error(
        ErrorCode::unsupported,
        fmt::format(
            "the way '{}', which the caller has chosen, cannot move {} {} from source rank {} (member {}): {}{}",
            to_string(error.forced), to_string(key), to_string(transfer.box), to_int(peer.layout_rank),
            peer.record.member, error.what(), peer.no_map_reason),
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
    core_.log(LogLevel::info, fmt::format("path to source rank {}, member {}: {}: {}{}", to_int(peer.layout_rank),
                                          peer.record.member, peer.path.carrier, moved, peer.no_map_reason));
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
  if (peer.own) {
    const auto& own = peer.own->tensors[transfer.held_tensor];
    offer.ways = {Way::local};
    transfer.held =
        placed_around(placed_.of(held.layout, held.spec.shape, peer.layout_rank, own.strides), transfer.box);
    transfer.source = own.data;
    return transfer;
  }
  offer = {{Way::packed}, MemoryKind::host, core_.fabric().name()};
  if (peer.path.reach == Reach::host) offer.carrier(Way::mapped) = core_.fabric().name();
  if (peer.link->peer_can("straight")) offer.ways.add(Way::straight);
  const wire::TensorHandle& handle = peer.handles[position_of(peer.tensors, transfer.held_tensor)];
  if (handle.region == wire::no_region || !peer.regions[handle.region]) {
    // How it lies there matters for the choice only: the source packs or sends from its own memory.
    transfer.held =
        remote_box(handle, std::numeric_limits<ByteCount>::max(), held, peer.layout_rank, transfer.box, placed_);
    return transfer;
  }
  const transport::RemoteRegion& region = *peer.regions[handle.region];
  // What is mapped counts, not what this answer says: the region may be known from an earlier one.
  const transport::ConstMemory mapped = region.mapped();
  const ByteCount bytes = mapped.empty() ? peer.region_bytes[handle.region] : mapped.bytes;
  transfer.held = remote_box(handle, bytes, held, peer.layout_rank, transfer.box, placed_);
  if (!mapped.empty()) {
    transfer.source = mapped.address + handle.offset_bytes;
    offer.ways.add(Way::mapped);
  }
  if (peer.path.read) {
    transfer.region = &region;
    transfer.region_offset = handle.offset_bytes;
    offer.ways.add(Way::read);
    offer.ways.add(Way::over_read);
  }
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
