// SPDX-License-Identifier: Apache-2.0
#include "move/ledger.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardwire::move {

namespace {

// A proof costs one read of some bytes: nothing beside this many. A lost peer costs at most these, and those in flight.
constexpr ByteCount least_proven_bytes = 1u << 20;
constexpr ByteCount most_unproven_bytes = 64u << 20;
constexpr ByteCount proofs_per_peer = 16;

ByteCount bytes_of(const std::vector<TransferPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), ByteCount{0},
                         [](ByteCount sum, const TransferPart& part) { return sum + part.bytes(); });
}

}  // namespace

Ledger::Peer& Ledger::of(std::uint32_t peer) {
  if (peers_.size() <= peer) peers_.resize(peer + std::size_t{1});
  return peers_[peer];
}

void Ledger::expect(std::uint32_t peer, ByteCount bytes) {
  of(peer).expected += bytes;
}

void Ledger::arrived(std::uint32_t peer, std::vector<TransferPart> parts) {
  Peer& from = of(peer);
  const ByteCount bytes = bytes_of(parts);
  from.since_due += bytes;
  from.lists.push_back(std::move(parts));
  if (from.since_due < std::clamp(from.expected / proofs_per_peer, least_proven_bytes, most_unproven_bytes)) return;
  from.since_due = 0;
  if (std::ranges::find(due_, peer) == due_.end()) due_.push_back(peer);
}

std::optional<std::uint32_t> Ledger::next_due() {
  if (due_.empty()) return std::nullopt;
  const std::uint32_t peer = due_.back();
  due_.pop_back();
  return peer;
}

Ledger::Mark Ledger::mark(std::uint32_t peer) const {
  return peer < peers_.size() ? peers_[peer].proven + peers_[peer].lists.size() : 0;
}

void Ledger::prove(std::uint32_t peer, Mark mark) {
  if (peer >= peers_.size()) return;
  Peer& from = peers_[peer];
  for (; from.proven < mark && !from.lists.empty(); ++from.proven) {
    from.lists.pop_front();
  }
}

std::vector<TransferPart> Ledger::unproven(std::uint32_t peer) const {
  std::vector<TransferPart> parts;
  if (peer >= peers_.size()) return parts;
  for (const auto& list : peers_[peer].lists) parts.insert(parts.end(), list.begin(), list.end());
  return parts;
}

}  // namespace shardwire::move
