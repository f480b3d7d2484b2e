// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "shardwire/types.hpp"

// Assigns bytes to the rounds of a collective. Pure: members with the same streams compute the same rounds, so each
// send meets its receive without communication.
namespace shardwire::move {

/// One piece's contribution to a stream: its elements in row-major order.
struct StreamPiece {
  ByteCount bytes = 0;
  ByteCount run_bytes = 0;   ///< longest range that is contiguous on both sides; divides `bytes`
  ByteCount item_bytes = 1;  ///< no element is split; divides `run_bytes`
};

/// All bytes that one member sends to another, piece after piece.
struct Stream {
  int from = 0;
  int to = 0;  ///< not `from`: bytes within a process need no round
  std::vector<StreamPiece> pieces;
};

struct RoundLimits {
  int members = 1;
  ByteCount staging_bytes = 0;  ///< the smallest budget of all members
  /// Sends and receives of one member in one round. NCCL hangs with thousands of them in a group (2.30).
  int max_operations = 256;
  /// Runs of at least this length are never copied. Shorter ones share messages, since each round costs its latency.
  ByteCount in_place_bytes = 8u << 20;
};

/// A range of a stream: one send on one side, and one receive on the other.
struct RoundPart {
  int peer = 0;
  ByteCount offset_bytes = 0;  ///< in the stream
  ByteCount bytes = 0;
  bool in_place = false;  ///< one run of one piece; else it passes staging on both sides

  bool operator==(const RoundPart&) const = default;
};

/// One member's part of a round. Empty: the member only posts the round.
struct Round {
  std::vector<RoundPart> sends;     ///< at most one to each peer
  std::vector<RoundPart> receives;  ///< at most one from each peer
};

/// The rounds of `member`; every member has the same number. In each round, the staged parts of a member, sends and
/// receives counted, fit the staging budget together. The stream of every pair is moved in order.
/// Requires: `streams` contains each ordered pair at most once.
/// Errors: throws Error{out_of_resources} if the budget does not hold one element.
/// Cost:   O(pieces + rounds * pairs).
std::vector<Round> plan_rounds(std::span<const Stream> streams, const RoundLimits& limits, int member);

}  // namespace shardwire::move
