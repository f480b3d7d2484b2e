// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/rounds.hpp"
#include "shardwire/layout.hpp"
#include "transport/collective.hpp"

// grouped: what all members have to move to one another, in rounds of a collective. Nobody asks and nobody answers: each member
// knows from the start what goes where, so it is no way of one restore but of all that run together.
namespace shardwire::move {

/// One piece of a stream, where it lies on this side.
struct GroupedPiece {
  Box box;
  PlacedBox placed;  ///< contains `box`
  ByteCount item_bytes = 0;
  std::byte* memory = nullptr;  ///< local element 0, of the collective's place; what is sent is not written to
};

struct GroupedJob {
  RoundLimits limits;
  int member = 0;
  ByteCount ingress_bytes_per_second = 0;  ///< of this member; 0: no cap
  std::vector<Stream> streams;             ///< of all pairs of members
  /// By peer: what the pieces of its stream are here, in their order.
  std::map<int, std::vector<GroupedPiece>> outgoing;
  std::map<int, std::vector<GroupedPiece>> incoming;
};

/// One member's part: packs, takes part in a round, unpacks, and so on. Runs that are long enough are sent and received where
/// they lie. Nothing here blocks.
/// Threads: one, that of the collective and of the queue.
class GroupedMove {
 public:
  /// Gives this much memory of the collective's place, once.
  using Staging = std::function<transport::Memory(ByteCount bytes)>;

  /// Ownership: collective and queue are borrowed, and so is all memory until over(). Errors: as plan_rounds().
  GroupedMove(GroupedJob job, transport::Collective& collective, memory::CopyQueue& copies, const Staging& staging);
  ~GroupedMove();
  GroupedMove(const GroupedMove&) = delete;
  GroupedMove& operator=(const GroupedMove&) = delete;

  /// Does what can be done now; false when there was nothing.
  bool progress();
  /// All has come, or it has failed; nothing touches any memory any more.
  [[nodiscard]] bool over() const;
  [[nodiscard]] const std::optional<transport::Fault>& fault() const;
  /// The fault is this member's own, of its copies or of what it posts: the others wait until the group is given up.
  [[nodiscard]] bool failed_here() const;
  /// Gives up, and the group with it; over() soon.
  void abort();

  [[nodiscard]] std::size_t rounds() const;
  [[nodiscard]] ByteCount received_bytes() const;  ///< in rounds that are over
  [[nodiscard]] ByteCount staging_bytes() const;   ///< most that a round takes here

 private:
  struct Side;
  struct State;
  std::shared_ptr<State> state_;  // owners: this and what is under way
};

}  // namespace shardwire::move
