// SPDX-License-Identifier: Apache-2.0
#include "move/tally.hpp"

#include <algorithm>

namespace shardwire::move {

void Tally::expect(const Transfer& transfer) {
  const ByteCount bytes = bytes_of(transfer);
  if (missing_.size() <= transfer.piece) missing_.resize(transfer.piece + std::size_t{1});
  dropped_.resize(missing_.size());
  if (by_peer_.size() <= transfer.peer) by_peer_.resize(transfer.peer + std::size_t{1});
  owed_.resize(by_peer_.size());
  const ByteCount taken_over = std::min(bytes, dropped_[transfer.piece]);
  dropped_[transfer.piece] -= taken_over;
  dropped_in_all_ -= taken_over;
  missing_[transfer.piece] += bytes - taken_over;
  expected_ += bytes - taken_over;
  owed_[transfer.peer] += bytes;
}

void Tally::arrived(const Transfer& transfer, ByteCount bytes) {
  Share& share = by_peer_[transfer.peer][index(transfer.method)];
  done_ += bytes;
  by_method_[index(transfer.method)] += bytes;
  share.bytes += bytes;
  share.arrived = share.ended;
  missing_[transfer.piece] -= bytes;
  owed_[transfer.peer] -= bytes;
}

void Tally::dropped(const Transfer& transfer, ByteCount bytes) {
  dropped_[transfer.piece] += bytes;
  dropped_in_all_ += bytes;
  owed_[transfer.peer] -= bytes;
}

void Tally::beyond(const Transfer& transfer, ByteCount bytes) {
  extra_ += bytes;
  by_method_[index(transfer.method)] += bytes;
  by_peer_[transfer.peer][index(transfer.method)].bytes += bytes;
}

void Tally::began(Method method, std::uint32_t peer) {
  AtWork& work = at_work_[index(method)];
  Share& share = by_peer_[peer][index(method)];
  const bool first = work.operations++ == 0;
  const bool first_of_peer = share.began == WallClock::time_point::max();
  if (!first && !first_of_peer) return;
  const WallClock::time_point now = now_();
  if (first) work.since = now;
  if (first_of_peer) share.began = now;
}

void Tally::ended(Method method, std::uint32_t peer) {
  AtWork& work = at_work_[index(method)];
  const WallClock::time_point now = now_();
  by_peer_[peer][index(method)].ended = now;
  if (--work.operations == 0) work.seconds += std::chrono::duration<double>(now - work.since).count();
}

ByteCount Tally::peer_bytes(std::uint32_t peer, Method method) const {
  return peer < by_peer_.size() ? by_peer_[peer][index(method)].bytes : 0;
}

ByteCount Tally::peer_bytes(std::uint32_t peer) const {
  if (peer >= by_peer_.size()) return 0;
  ByteCount bytes = 0;
  for (const Share& share : by_peer_[peer]) bytes += share.bytes;
  return bytes;
}

double Tally::peer_seconds(std::uint32_t peer, Method method) const {
  if (peer >= by_peer_.size()) return 0;
  const Share& share = by_peer_[peer][index(method)];
  return share.arrived > share.began ? std::chrono::duration<double>(share.arrived - share.began).count() : 0;
}

Tally::WallClock::time_point Tally::peer_began(std::uint32_t peer, Method method) const {
  return peer < by_peer_.size() ? by_peer_[peer][index(method)].began : WallClock::time_point::max();
}

ByteCount Tally::owed_bytes(std::uint32_t peer) const {
  return peer < owed_.size() ? owed_[peer] : 0;
}

bool Tally::complete(std::uint32_t piece) const {
  return piece < missing_.size() && missing_[piece] == 0;
}

}  // namespace shardwire::move
