// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "transport/transport.hpp"

// The internal contract of group-style transports: all members of a group take part in rounds of sends and receives, in the
// same order. Where endpoints read and answer one peer at a time, this is for fabrics that know a group as a whole.
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
/// Threads: all belongs to one thread. Completions run inside progress(), never inside the call that posts.
class Collective {
 public:
  /// Bounded, also when other members are gone. Completions of what is under way never run.
  virtual ~Collective() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// One round: at most one send to each member and one receive from each. A send and the receive that it is for are in the
  /// same round on both sides, and of the same length; rounds are posted in the same order everywhere, and one after the
  /// other: `done` runs when this member's part of the round is over. The lists are copied, the memory stays borrowed until
  /// then. A round of nothing is legal. A member has nothing to do with rounds in which it has no part but to post them too.
  /// Errors: throws Error{invalid_argument} for a rank outside of the group, two sends to one member, two receives from one,
  ///         and while a round is under way; Error{unsupported} for memory of a place that this collective does not move.
  ///         Sides that do not agree end with Fault{transport_failed} where CollectiveTransport::watches.
  virtual void round(std::span<const GroupSend> sends, std::span<const GroupReceive> receives, Completion done) = 0;
  /// As Fabric::progress().
  virtual bool progress() = 0;
  /// As Fabric::event_descriptor() and Fabric::arm().
  [[nodiscard]] virtual int event_descriptor() const = 0;
  virtual bool arm() = 0;
  /// Gives the group up: a round that is under way ends with Fault{cancelled} here, soon; then its memory is not touched any
  /// more. No round can be posted afterwards. Elsewhere rounds end with Fault{peer_lost} where CollectiveTransport::watches;
  /// else the others have to be told, and to give up as well.
  virtual void abort() = 0;
  /// A round has ended that could not be stopped in time: its memory may still be written, and is not to be freed.
  [[nodiscard]] virtual bool is_stuck() const { return false; }
};

/// What makes a group: one member draws the id and tells the others.
struct GroupSetup {
  Bytes id;
  int rank = 0;
  int size = 1;
  int device = -1;  ///< where the memory of its rounds lies; of no meaning to groups of host memory
  void* communicator =
      nullptr;  ///< of the caller, who keeps it: taken instead of making one, once it has proven to fit
};

/// A line of the table in registry.cpp.
struct CollectiveTransport {
  std::string_view name;
  MemoryKind memory;  ///< that it moves
  bool watches;       ///< finds out by itself when a member gives up or goes, and when two sides do not agree
  Viability (*probe)();
  /// A group is of members whose domains are equal.
  std::string (*domain)();
  Bytes (*make_id)();
  /// Returns at once: members may come one after the other, and the first round waits for all.
  std::unique_ptr<Collective> (*open)(const GroupSetup& setup);
  /// Of a communicator of the caller's: where the memory lies that it moves. Null: takes none. Errors: throws
  /// Error{invalid_argument} for one that cannot be used, Error{unsupported} where that cannot be known.
  int (*device_of)(void* communicator) = nullptr;
};

/// Every collective transport of this build; the only list of them.
std::span<const CollectiveTransport> registered_collectives();

}  // namespace shardwire::transport
