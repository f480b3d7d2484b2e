// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/operation.hpp"
#include "exchange/agreement.hpp"
#include "memory/copy_queue.hpp"
#include "memory/device.hpp"
#include "move/collective.hpp"
#include "paths/fabric_driver.hpp"
#include "runtime/interruption.hpp"
#include "runtime/loop.hpp"
#include "transport/collective.hpp"
#include "wire/exchange_note.hpp"

// The method collective of an exchange: computes each member's transfers, and has the session's thread drive the rounds
// (rounds_task.hpp).
namespace shardwire {

/// Finds a piece that this member holds. Errors: throws Error{transport_failed} if it does not hold the piece.
using HeldPiece = std::function<move::CollectivePiece(const wire::ExchangeRequest& request)>;
/// The transfers of one member by the requests in `notes`: `incoming` for its own requests, in their order; `held` for
/// those of other members. Members are identified by their ranks in the group.
/// Errors: as `held`; throws Error{transport_failed} for a request that no member can answer.
move::CollectiveJob collective_job(std::span<const wire::ExchangeNote> notes, const GroupChoice& group, int member,
                                   ByteCount staging_bytes, std::span<const move::CollectivePiece> incoming,
                                   const HeldPiece& held);

class RoundsStep;

/// The parts of a session that the rounds of an exchange use.
struct RoundsContext {
  std::shared_ptr<Loop> loop;        ///< the session's thread. Owners: the session and its calls in progress
  const Interruption& interruption;  ///< of waits of the exchange's thread

  // Threads: loop thread only.
  FabricDriver& driver;  ///< is used when the session ends, too. The functions below are not called then
  memory::CopyQueue& copies;
  std::function<void(std::unique_ptr<Operation> rounds)> start;  ///< takes the rounds over and starts them
  std::function<void(Operation& rounds)> finished;               ///< the rounds are destroyed in a later loop iteration
};

/// Notices received from the other members of an exchange, outside barriers.
struct FailureNotices {
  std::vector<int> departed{};  ///< members that have left or were lost
  bool given_up = false;        ///< one member has given the exchange up
};

/// One member's endpoint in the group of an exchange, with the staging of its rounds.
/// Threads: that of the exchange. While run() waits, the session's thread drives the group.
class ExchangeRounds {
 public:
  /// Errors: as CollectiveTransport::open.
  ExchangeRounds(const transport::CollectiveTransport& collective, const transport::GroupSetup& setup);
  ExchangeRounds(const ExchangeRounds&) = delete;
  ExchangeRounds& operator=(const ExchangeRounds&) = delete;

  [[nodiscard]] int size() const { return collective_->size(); }
  /// See transport::Collective::is_stuck().
  [[nodiscard]] bool is_stuck() const { return collective_->is_stuck(); }

  struct Totals {
    std::uint64_t rounds = 0;
    ByteCount bytes = 0;  // received by this member
    double seconds = 0;
    ByteCount staging_bytes = 0;
  };
  /// The rounds of one step.
  struct Step {
    /// Null: this member only takes part for the others. Owners: the exchange and its restore.
    std::shared_ptr<RoundsStep> restore;
    bool writes = false;       ///< for this member's restore
    std::vector<int> members;  ///< of the group
    Clock::Time deadline;
    /// Operation::directory_changed() says when to ask again. Loop thread only.
    std::function<FailureNotices()> failure_notices;
    std::function<void(const Error& why)> give_up;  ///< notifies the other members that this one stops
  };
  /// Returns when this member has sent and received everything.
  /// Errors: throws RoundsFailed if another member has given up or the group itself has failed, and if the restore that
  ///         it writes for has ended; Error{peer_lost} if a member of the group is gone; Error{timed_out} at the
  ///         deadline; and errors of this member alone. In each case the group is aborted, so that the other members
  ///         end too. No memory is accessed afterwards.
  Totals run(move::CollectiveJob job, const Step& step, const RoundsContext& context);
  /// For a member that does not take part in the rounds: ends those of the others.
  void abort();

 private:
  Totals run_all(move::CollectiveJob job, const Step& step, const RoundsContext& context);
  void end_alone(move::CollectiveMove& rounds);
  transport::Memory staging(ByteCount bytes);

  transport::MemoryPlace place_;
  Bytes staging_;
  std::unique_ptr<memory::DeviceMemory> device_staging_;  // replaces host staging on a device
  std::unique_ptr<transport::Collective> collective_;
};

/// Leaks rounds that never ended: a device may still write their memory, and freeing other memory of that device would
/// wait for them.
struct LeaveStuckRounds {
  void operator()(ExchangeRounds* rounds) const {
    if (!rounds->is_stuck()) delete rounds;  // NOLINT
  }
};
using OwnedRounds = std::unique_ptr<ExchangeRounds, LeaveStuckRounds>;

/// The rounds have ended before this member had sent and received everything.
class RoundsFailed : public Error {
 public:
  /// The one that knows the reason.
  enum class Cause : std::uint8_t {
    own,      ///< this member: it is this error
    restore,  ///< the restore that the rounds wrote for, which has ended
    others,   ///< another member may know it: one has given the exchange up, or the group failed
  };
  explicit RoundsFailed(const Error& error, Cause of = Cause::own) : Error(error), cause(of) {}

  Cause cause;
};

}  // namespace shardwire
