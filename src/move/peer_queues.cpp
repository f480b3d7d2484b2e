// SPDX-License-Identifier: Apache-2.0
#include "move/peer_queues.hpp"

#include <iterator>

namespace shardwire::move {

void PeerQueues::limit(std::uint32_t peer, ByteCount bytes) {
  if (queues_.size() <= peer) queues_.resize(peer + std::size_t{1});
  queues_[peer].limit_bytes = bytes;
}

void PeerQueues::add(const Transfer& transfer) {
  queues_.at(transfer.peer).transfers.push_back(&transfer);
}

bool PeerQueues::refill(Queue& queue) {
  if (queue.transfers.empty()) return false;
  const Transfer* const transfer = queue.transfers.front();
  queue.transfers.pop_front();
  boxes_.clear();
  split_(*transfer, queue.limit_bytes, boxes_);
  for (const Box& box : boxes_) queue.parts.emplace_back(*transfer, box);
  return true;
}

std::vector<TransferPart> PeerQueues::take(std::uint32_t peer, std::size_t parts) {
  auto& queue = queues_[peer].parts;
  const auto end = queue.begin() + static_cast<std::ptrdiff_t>(parts);
  std::vector<TransferPart> taken(std::make_move_iterator(queue.begin()), std::make_move_iterator(end));
  queue.erase(queue.begin(), end);
  return taken;
}

std::vector<TransferPart> PeerQueues::take_all(std::uint32_t peer) {
  if (peer >= queues_.size()) return {};
  Queue& queue = queues_[peer];
  std::vector<TransferPart> taken(std::make_move_iterator(queue.parts.begin()),
                                  std::make_move_iterator(queue.parts.end()));
  for (const Transfer* transfer : queue.transfers) {
    if (!transfer->box.empty()) taken.emplace_back(*transfer, transfer->box);
  }
  queue.parts.clear();
  queue.transfers.clear();
  return taken;
}

}  // namespace shardwire::move
