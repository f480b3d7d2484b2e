// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "session/restore/run.hpp"

// What comes in rounds of a collective: handed to the exchange that drives them, and taken back when it is in place.
namespace shardwire {

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
        transfer.target, nullptr};
  };
  core_.copies().submit(
      {.count = count, .copy = std::move(copies), .work = memory::CopyWork::digest, .digest = kind},
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
