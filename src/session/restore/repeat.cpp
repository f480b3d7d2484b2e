// SPDX-License-Identifier: Apache-2.0
#include "session/restore/repeat.hpp"

#include <algorithm>

namespace shardwire {

namespace {

// So little that asking for a lease would take longer than getting it.
constexpr ByteCount max_unleased_bytes = 1u << 20;

bool is_at_device(const move::Transfer& transfer, const SourcePeer& peer) {
  const std::uint32_t region = peer.handles[peer.position_of(transfer.held_tensor)].region;
  if (region == wire::no_region) return false;
  const auto& place = peer.regions[region].place;
  return !place || place->kind != MemoryKind::host;
}

// What a source has changed meanwhile shows in its generation. Memory of a device that its owner has freed may not even be looked
// at, and a NIC may still reach what lies there by then: its owner is asked for a lease first, and asks the driver.
bool reads_in_place(const move::Transfer& transfer, const SourcePeer& peer) {
  if (transfer.way == Way::local) return true;
  return (transfer.way == Way::mapped || transfer.way == Way::read) && !is_at_device(transfer, peer);
}

bool still_bound(const SourcePeer& peer) {
  return peer.bound_generation == peer.record.generation &&
         (!peer.link || (!peer.link->broken() && peer.link->peer_can("unleased") && peer.still_connected()));
}

}  // namespace

void Repetition::choose(const RestoreOptions& options, const Catalog& wanted, const std::vector<SourcePeer>& peers) {
  if (options.verify != Verify::none || cached_->way != options.way || !same_memory(cached_->wanted, wanted)) return;
  if (!std::all_of(peers.begin(), peers.end(), still_bound)) return;
  ByteCount bytes = 0;
  bool in_place = true;
  bool packed_at_most = true;
  for (const move::Transfer& transfer : *cached_->transfers) {
    bytes += move::bytes_of(transfer);
    const SourcePeer& peer = peers[transfer.peer];
    const bool direct = reads_in_place(transfer, peer);
    in_place = in_place && direct;
    const bool one_message =
        transfer.way == Way::packed || (transfer.way == Way::straight && peer.message_ranges() > 1);
    packed_at_most = packed_at_most && (direct || one_message);
  }
  unleased_ = packed_at_most && bytes <= max_unleased_bytes;
  optimistic_ = unleased_ || in_place;
}

bool Repetition::same_transfers(const RestoreOptions& options, const Catalog& wanted) const {
  return cached_ && !bound_anew_ && cached_->way == options.way && same_memory(cached_->wanted, wanted);
}

}  // namespace shardwire
