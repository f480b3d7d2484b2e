// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "move/transfer.hpp"

namespace shardwire::move {

/// Parts that have arrived by one-sided reads, until something proves that they were read while the publication was live.
///
///   waiting ─► flying ─► arrived ─► proven
///      ▲          └──────────┴─────► waiting again, if the peer is lost
///
/// A part waits in its method and flies in an operation; Engine::drop() returns both. Only `arrived` is kept here. What comes
/// by messages, or from mapped memory, is not: a source sends only while the publication is live, and mapped memory shows at
/// any time whether it still is.
/// Threads: loop thread only.
class Ledger {
 public:
  /// Counts what has arrived from one peer.
  using Mark = std::uint64_t;

  /// To come from this peer by reads.
  void expect(std::uint32_t peer, ByteCount bytes);
  void arrived(std::uint32_t peer, std::vector<TransferPart> parts);
  /// A peer of which so much has arrived since the last proof began that the next is worth its read; each is returned once.
  std::optional<std::uint32_t> next_due();
  /// Marks the parts that have arrived until now. A proof that begins after this proves them.
  [[nodiscard]] Mark mark(std::uint32_t peer) const;
  /// The parts that had arrived at `mark` are proven.
  void prove(std::uint32_t peer, Mark mark);
  /// Arrived and not proven.
  [[nodiscard]] std::vector<TransferPart> unproven(std::uint32_t peer) const;

 private:
  struct Peer {
    std::deque<std::vector<TransferPart>> lists;  // arrived together, in the order of arrival
    Mark proven = 0;                              // lists before the first of `lists`
    ByteCount expected = 0;
    ByteCount since_due = 0;
  };
  Peer& of(std::uint32_t peer);

  std::vector<Peer> peers_;
  std::vector<std::uint32_t> due_;
};

}  // namespace shardwire::move
