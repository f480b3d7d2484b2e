// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/rate_limiter.hpp"
#include "move/rounds.hpp"
#include "shardwire/layout.hpp"
#include "transport/collective.hpp"

// collective: all transfers between all members, in rounds of a collective. There are no requests: each member knows
// the whole schedule from the start. So one engine moves the bytes of all restores that run together; in each restore,
// the method collective (make_collective) hands transfers over to it.
namespace shardwire::move {

/// One piece of a stream, with its location on this side.
struct CollectivePiece {
  Box box;
  PlacedBox placed;  ///< contains `box`
  ByteCount item_bytes = 0;
  std::byte* memory = nullptr;  ///< local element 0, in the collective's place; never written on the sending side
};

struct CollectiveJob {
  RoundLimits limits;
  int member = 0;
  ByteCount ingress_bytes_per_second = 0;  ///< for this member; 0: no limit
  std::vector<Stream> streams;             ///< for all pairs of members
  /// By peer: the local pieces of its stream, in order.
  std::map<int, std::vector<CollectivePiece>> outgoing;
  std::map<int, std::vector<CollectivePiece>> incoming;
};

/// One member's part: it packs, takes part in a round, unpacks, and repeats. Long runs are sent and received in place.
/// Nothing here blocks: it advances in progress(), and when copies end.
/// Threads: one at a time, that of the collective; from begin() on also that of the queue.
class CollectiveMove final : public transport::Driven {
 public:
  /// Provides this much memory of the collective's place, once.
  using Staging = std::function<transport::Memory(ByteCount bytes)>;

  /// Plans the rounds. Ownership: the collective and all memory are borrowed until over(). Errors: as plan_rounds().
  CollectiveMove(CollectiveJob job, transport::Collective& collective, const Staging& staging);
  ~CollectiveMove();
  CollectiveMove(const CollectiveMove&) = delete;
  CollectiveMove& operator=(const CollectiveMove&) = delete;

  using Now = std::function<RateLimiter::WallClock::time_point()>;
  /// Starts the rounds. Requires: called once, before progress(). Ownership: the queue, and what `now` uses, are borrowed
  /// until over() or copies_ended().
  void begin(Now now, memory::CopyQueue& copies);
  bool progress() override;
  [[nodiscard]] int event_descriptor() const override;
  bool arm() override;
  /// When to call progress() again, if only the rate limit prevents the next round.
  [[nodiscard]] std::optional<RateLimiter::WallClock::time_point> retry_at() const;
  /// Everything has arrived, or it has failed; memory is no longer accessed.
  [[nodiscard]] bool over() const;
  [[nodiscard]] const std::optional<transport::Fault>& fault() const;
  /// The fault lies in this member's own copies or posts: the others wait until the group is aborted.
  [[nodiscard]] bool failed_here() const;
  /// Aborts itself and the group; over() becomes true soon.
  void abort();
  /// The copy queue has ended, so a copy under way never completes: only a posted round is waited for. Requires: it is
  /// aborted.
  void copies_ended();

  /// Members of the group with which bytes of the present round are exchanged, ascending.
  [[nodiscard]] std::vector<int> peers() const;
  [[nodiscard]] std::size_t rounds() const;
  [[nodiscard]] ByteCount received_bytes() const;  ///< in completed rounds
  [[nodiscard]] ByteCount staging_bytes() const;   ///< maximum that a round uses here

 private:
  struct Side;
  struct State;
  std::shared_ptr<State> state_;  // owners: this and operations under way
};

}  // namespace shardwire::move
