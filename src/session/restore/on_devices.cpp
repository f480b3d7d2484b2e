// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <set>

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

// Packed into pinned host memory there, and unpacked from it here. Mapped memory of the host is as good, where nobody sends.
void RestoreRun::offer_staged(const move::Transfer& transfer, const TensorKey& key, const Peer& peer,
                              move::Offer& offer) const {
  offer.ways = {};
  offer.memory = MemoryKind::cuda;
  if (peer.sent_by) {
    offer.add(Way::packed, core_.fabrics().row(peer.connected[*peer.sent_by].fabric).name);
  } else if (transfer.source != nullptr) {
    offer.ways.add(Way::mapped);
  } else {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: memory of a device is on its way staged through host memory, and no transport that this "
                    "session has open sends messages to source rank {}: open tcp beside it",
                    to_string(key), to_int(peer.layout_rank)),
        std::vector<Rank>{peer.layout_rank});
  }
}

void RestoreRun::explain_staged(Peer& peer) const {
  if (!touches_devices(peer) || !peer.sent_by) return;
  peer.no_map_reason =
      "; device memory is " + why_staged(*peer.connected[*peer.sent_by].channel->endpoint) + peer.no_map_reason;
}

}  // namespace shardwire
