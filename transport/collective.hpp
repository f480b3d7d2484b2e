// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "transport/driven.hpp"
#include "transport/transport.hpp"

// The internal contract of group-style transports: all members of a group post the same rounds of sends and receives in
// the same order. Use it for fabrics that address a group as a whole; endpoint-style fabrics serve one peer at a time.
namespace shardwire::transport {

struct GroupSend {
  int to = -1;  ///< rank in the group
  ConstMemory memory;
};
struct GroupReceive {
  int from = -1;
  Memory memory;
};

/// One member's end of a group.
/// Threads: one thread at a time. Completions run inside progress(), never inside the call that posts.
class Collective : public Driven {
 public:
  /// Bounded, even if other members are gone. Completions of operations under way never run.
  virtual ~Collective() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// One round: at most one send to each member and one receive from each. A send and its receive belong to the same
  /// round on both sides and have the same length. All members post rounds in the same order, one after the other;
  /// `done` runs when this member's part of the round has ended. The lists are copied; the memory stays borrowed until
  /// then. An empty round is legal. A member posts every round, including rounds in which it has no part.
  /// Errors: throws Error{invalid_argument} for a rank outside the group, two sends to one member, two receives from
  ///         one member, or while a round is under way; Error{unsupported} for memory of a place that this collective
  ///         does not move. Sides that disagree end with Fault{transport_failed} where CollectiveTransport::watches.
  virtual void round(std::span<const GroupSend> sends, std::span<const GroupReceive> receives, Completion done) = 0;
  /// Leaves the group. A round under way soon ends here with Fault{cancelled}; after that its memory is not touched. No
  /// round can be posted afterwards. Other members' rounds end with Fault{peer_lost} where
  /// CollectiveTransport::watches; otherwise the caller must tell the other members to abort too.
  virtual void abort() = 0;
  /// True if a round ended but could not be stopped in time: its memory may still be written and must not be freed.
  [[nodiscard]] virtual bool is_stuck() const { return false; }
};

/// Parameters of a group. One member draws the id and sends it to the others.
struct GroupSetup {
  Bytes id;
  int rank = 0;
  int size = 1;
  int device = -1;               ///< device that holds the memory of its rounds; ignored by groups of host memory
  void* communicator = nullptr;  ///< owned by the caller; used instead of creating one if it fits
};

/// One line of the table in registry.cpp.
struct CollectiveTransport {
  std::string_view name;
  MemoryKind memory;  ///< kind of memory that it moves
  bool watches;       ///< detects by itself that a member aborted or died, or that two sides disagree
  Viability (*probe)();
  /// All members of a group have equal domains.
  std::string (*domain)();
  Bytes (*make_id)();
  /// Returns at once: members may open at different times, and the first round waits for all.
  std::unique_ptr<Collective> (*open)(const GroupSetup& setup);
  /// The device whose memory the caller's communicator moves. Null: this transport accepts no communicator.
  /// Errors: throws Error{invalid_argument} for an unusable communicator, Error{unsupported} if the device is unknown.
  int (*device_of)(void* communicator) = nullptr;
};

/// All collective transports of this build; the only list of them.
std::span<const CollectiveTransport> registered_collectives();

}  // namespace shardwire::transport
