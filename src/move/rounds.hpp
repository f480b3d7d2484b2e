// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "shardwire/types.hpp"

// Which bytes go in which round of a collective. Pure: every member that is given the same streams finds the same rounds, so
// each send meets its receive without a word between the two.
namespace shardwire::move {

/// What one piece adds to a stream: its elements in row-major order.
struct StreamPiece {
  ByteCount bytes = 0;
  ByteCount run_bytes = 0;   ///< longest range that lies in one piece on both sides; divides `bytes`
  ByteCount item_bytes = 1;  ///< no element is cut; divides `run_bytes`
};

/// All that one member sends to another, one piece behind the other.
struct Stream {
  int from = 0;
  int to = 0;  ///< not `from`: what stays in a process needs no round
  std::vector<StreamPiece> pieces;
};

struct RoundLimits {
  int members = 1;
  ByteCount staging_bytes = 0;  ///< the smallest budget of all members
  /// Sends and receives of one member in one round. NCCL hangs with thousands of them in a group (2.30).
  int max_operations = 256;
  /// Runs from this length on are never copied. Shorter ones share messages, since a round costs its latency whatever it brings.
  ByteCount in_place_bytes = 8u << 20;
};

/// A range of a stream that is one send on one side, and one receive on the other.
struct RoundPart {
  int peer = 0;
  ByteCount offset_bytes = 0;  ///< in the stream
  ByteCount bytes = 0;
  bool in_place = false;  ///< one run of one piece; else it goes through staging on both sides

  bool operator==(const RoundPart&) const = default;
};

/// One member's part of a round. Empty: it has nothing to do but to post the round too.
struct Round {
  std::vector<RoundPart> sends;     ///< at most one to each peer
  std::vector<RoundPart> receives;  ///< at most one from each peer
};

/// The rounds of `member`, as many as of all others. In each, every member's parts that are not in place have together at
/// most the staging budget, sends and receives counted; of every pair the stream comes in its order.
/// Requires: each ordered pair is in `streams` once at most.
/// Errors: throws Error{out_of_resources} when the budget does not hold one element.
/// Cost:   O(pieces + rounds * pairs).
std::vector<Round> plan_rounds(std::span<const Stream> streams, const RoundLimits& limits, int member);

}  // namespace shardwire::move
