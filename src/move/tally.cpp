// SPDX-License-Identifier: Apache-2.0
#include "move/way.hpp"

namespace shardwire::move {

void Tally::expect(const Transfer& transfer) {
  const ByteCount bytes = bytes_of(transfer);
  expected_ += bytes;
  if (missing_.size() <= transfer.piece) missing_.resize(transfer.piece + std::size_t{1});
  missing_[transfer.piece] += bytes;
  if (by_peer_.size() <= transfer.peer) by_peer_.resize(transfer.peer + std::size_t{1});
}

void Tally::arrived(const Transfer& transfer, ByteCount bytes) {
  done_ += bytes;
  by_way_[static_cast<std::size_t>(transfer.way)] += bytes;
  by_peer_[transfer.peer][static_cast<std::size_t>(transfer.way)] += bytes;
  missing_[transfer.piece] -= bytes;
}

ByteCount Tally::peer_bytes(std::uint32_t peer, WayKind way) const {
  return peer < by_peer_.size() ? by_peer_[peer][static_cast<std::size_t>(way)] : 0;
}

bool Tally::complete(std::uint32_t piece) const {
  return piece < missing_.size() && missing_[piece] == 0;
}

}  // namespace shardwire::move
