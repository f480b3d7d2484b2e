// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "session/restore/run.hpp"

// What comes in rounds of a collective: handed to the exchange that drives them, and taken back when it is in place.
namespace shardwire {

// None where the source names a kind of memory that is not known here.
std::optional<int> RestoreRun::device_at_source(const Peer& peer, std::size_t position) {
  const wire::TensorHandle& handle = peer.handles[position];
  if (handle.region == wire::no_region) return memory::on_host;
  const auto& place = peer.regions[handle.region].place;
  if (!place) return std::nullopt;
  return place->kind == MemoryKind::cuda ? place->device : memory::on_host;
}

bool RestoreRun::may_come_in_rounds(const Peer& peer, std::size_t position, int target_device) const {
  if (!grouped_ || peer.own) return false;
  const auto source = device_at_source(peer, position);
  return source && grouped_->carries(peer.record.member, *source, target_device);
}

bool RestoreRun::may_come_in_rounds(const move::Transfer& transfer) const {
  const Peer& peer = peers_[transfer.peer];
  return may_come_in_rounds(peer, peer.position_of(transfer.held_tensor), transfer.target_device);
}

// Mapped, or read by hardware.
bool RestoreRun::has_direct_path(const move::Transfer& transfer, const move::Offer& offer) const {
  if (offer.ways.has(Way::mapped)) return true;
  const Peer& peer = peers_[transfer.peer];
  return offer.ways.has(Way::read) && peer.read_by && !peer.connected[*peer.read_by].path.reads_need_peer;
}

std::string RestoreRun::why_not_in_rounds(const move::Transfer& transfer) const {
  if (!grouped_)
    return "; rounds are of exchanges, and between members with device memory, or between all where none has any";
  const auto name = [](std::optional<int> device) {
    if (!device) return std::string("unknown memory");
    if (*device == GroupedHandover::nowhere) return std::string("no memory");
    return *device == memory::on_host ? "host memory" : fmt::format("memory of device {}", *device);
  };
  const Peer& peer = peers_[transfer.peer];
  return fmt::format("; from {} there to {} here, and rounds of {} move {} to {}",
                     name(device_at_source(peer, peer.position_of(transfer.held_tensor))), name(transfer.target_device),
                     grouped_->collective(), name(grouped_->device_of(peer.record.member)),
                     name(grouped_->device_of(core_.member())));
}

// Whether all members take rounds is decided by what all of them ask.
void RestoreRun::ask_for_rounds() {
  bool indirect = false;
  for (std::size_t i = 0; i < offers_.size(); ++i) {
    const move::Transfer& transfer = (*offered_)[i];
    if (!may_come_in_rounds(transfer)) continue;
    offers_[i].add(Way::grouped, grouped_->collective());
    indirect = indirect || !has_direct_path(transfer, offers_[i]);
  }
  if (!grouped_->undecided()) return rounds_decided(true);
  grouped_->ask(indirect, [this, alive = std::weak_ptr<bool>(alive_)](bool in_rounds) {
    if (alive.expired() || stage_ != Stage::bind) return;
    guarded([&] { rounds_decided(in_rounds); });
  });
}

void RestoreRun::rounds_decided(bool in_rounds) {
  for (move::Offer& offer : offers_) {
    if (!offer.ways.has(Way::grouped)) continue;
    if (in_rounds) {
      offer.ways = {Way::grouped};
    } else {
      offer.ways.remove(Way::grouped);
    }
  }
  settle_transfers();
  begin_to_move();
}

void RestoreRun::offer_to_rounds() {
  std::vector<GroupedHandover::Item> items;
  brought_.clear();
  for (const move::Transfer& transfer : *transfers_) {
    if (transfer.way != Way::grouped) continue;
    brought_.push_back(&transfer);
    items.push_back({peers_[transfer.peer].record.member,
                     transfer.held_tensor,
                     transfer.copy->run_bytes(),
                     {transfer.box, transfer.wanted, transfer.item_bytes, transfer.target}});
  }
  if (!brought_.empty()) engine_->rounds_began();
  grouped_->offer(std::move(items), [this, alive = std::weak_ptr<bool>(alive_)](bool brought) {
    if (!alive.expired()) rounds_closed(brought);
  });
}

void RestoreRun::rounds_closed(bool brought) {
  if (stage_ == Stage::move && !brought_.empty()) engine_->rounds_ended();
  // Else it has failed, here or in the rounds: who drives them says what is to be done.
  if (stage_ == Stage::move && brought) guarded([this] { digest_brought(); });
  pump();
}

// Of what is in place: the sources are asked for theirs as after any other way.
void RestoreRun::digest_brought() {
  if (options_.verify != Verify::digest || brought_.empty()) return engine_->brought(brought_, 0);
  for (const memory::DigestKind kind : {memory::DigestKind::flat, memory::DigestKind::tree}) {
    std::vector<const move::Transfer*> those;
    std::ranges::copy_if(brought_, std::back_inserter(those),
                         [&](const move::Transfer* transfer) { return digest_kind(peers_[transfer->peer]) == kind; });
    if (!those.empty()) digest_brought(std::move(those), kind);
  }
}

void RestoreRun::digest_brought(std::vector<const move::Transfer*> those, memory::DigestKind kind) {
  const std::size_t count = those.size();
  auto copies = [those](std::size_t index) {
    const move::Transfer& transfer = *those[index];
    return memory::QueuedCopy{
        memory::StridedCopy(transfer.box, transfer.wanted, memory::packed(transfer.box), transfer.item_bytes),
        transfer.target, nullptr, transfer.target_device};
  };
  const bool on_devices =
      std::ranges::any_of(those, [](const move::Transfer* one) { return one->target_device != memory::on_host; });
  core_.copies().submit(
      {.count = count,
       .copy = std::move(copies),
       .work = memory::CopyWork::digest,
       .digest = kind,
       .on_devices = on_devices},
      [this, those = std::move(those), alive = std::weak_ptr<bool>(alive_)](const memory::CopyResult& result) {
        if (alive.expired()) return;
        --digesting_;
        if (stage_ == Stage::move) guarded([&] { digested_brought(those, result); });
        pump();
      });
  ++digesting_;
}

void RestoreRun::digested_brought(const std::vector<const move::Transfer*>& those, const memory::CopyResult& result) {
  if (result.error) std::rethrow_exception(result.error);
  for (std::size_t i = 0; i < those.size(); ++i) check_later({*those[i], those[i]->box}, result.digests[i]);
  engine_->brought(those, result.digest_seconds);
}

}  // namespace shardwire
