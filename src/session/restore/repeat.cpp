// SPDX-License-Identifier: Apache-2.0
#include "session/restore/repeat.hpp"

#include <algorithm>

namespace shardwire {

namespace {

// So little that asking for a lease would take longer than getting it.
constexpr ByteCount max_unleased_bytes = 1u << 20;

// What a source has changed meanwhile shows in its generation. Memory of a device that its owner has freed may not even be looked
// at, so it takes a lease first.
bool reads_in_place(const move::Transfer& transfer) {
  const bool maps_device = transfer.way == Way::mapped && transfer.source_device != memory::on_host;
  return transfer.way == Way::local || (transfer.way == Way::mapped && !maps_device) || transfer.way == Way::read;
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
    in_place = in_place && reads_in_place(transfer);
    const bool one_message =
        transfer.way == Way::packed || (transfer.way == Way::straight && peers[transfer.peer].message_ranges() > 1);
    packed_at_most = packed_at_most && (reads_in_place(transfer) || one_message);
  }
  unleased_ = packed_at_most && bytes <= max_unleased_bytes;
  optimistic_ = unleased_ || in_place;
}

bool Repetition::same_transfers(const RestoreOptions& options, const Catalog& wanted) const {
  return cached_ && !bound_anew_ && cached_->way == options.way && same_memory(cached_->wanted, wanted);
}

}  // namespace shardwire
