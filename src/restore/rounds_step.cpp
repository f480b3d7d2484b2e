// SPDX-License-Identifier: Apache-2.0
#include "restore/rounds_step.hpp"

namespace shardwire {

void RoundsStep::report_paths(bool indirect, std::function<void(bool)> decided) {
  indirect_.value = indirect;
  decided_ = std::move(decided);
  indirect_.tell(stopped_);
}

void RoundsStep::begin(std::span<const move::Transfer* const> transfers, std::function<void(bool)> ended) {
  std::vector<Item> items;
  for (const move::Transfer* transfer : transfers) {
    items.push_back({members_.at(transfer->peer),
                     transfer->held_tensor,
                     transfer->copy->run_bytes(),
                     {transfer->box, transfer->wanted, transfer->item_bytes, transfer->target}});
  }
  offer(std::move(items), std::move(ended));
}

void RoundsStep::offer(std::vector<Item> items, std::function<void(bool)> closed) {
  items_.value = std::move(items);
  closed_ = std::move(closed);
  items_.tell(stopped_);
}

void RoundsStep::stop() {
  if (std::exchange(stopped_, true)) return;
  decided_ = nullptr;
  if (!writing_) closed_ = nullptr;
  indirect_.tell(stopped_);
  items_.tell(stopped_);
  if (const auto on_stop = std::exchange(on_stop_, nullptr)) on_stop();
}

void RoundsStep::on_paths(std::function<void(std::optional<bool>)> done) {
  indirect_.done = std::move(done);
  indirect_.tell(stopped_);
}

void RoundsStep::decide(bool in_rounds) {
  if (const auto decided = std::exchange(decided_, nullptr)) decided(in_rounds);
}

void RoundsStep::on_offer(std::function<void(std::optional<std::vector<Item>>)> done) {
  items_.done = std::move(done);
  items_.tell(stopped_);
}

bool RoundsStep::open(std::function<void()> stopped) {
  if (stopped_) return false;
  writing_ = true;
  on_stop_ = std::move(stopped);
  return true;
}

void RoundsStep::close(bool received) {
  writing_ = false;
  on_stop_ = nullptr;
  if (const auto closed = std::exchange(closed_, nullptr)) closed(received);
}

}  // namespace shardwire
