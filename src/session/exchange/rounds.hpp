// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/copier.hpp"
#include "memory/copy_queue.hpp"
#include "memory/device.hpp"
#include "move/grouped.hpp"
#include "session/exchange/agreement.hpp"
#include "transport/collective.hpp"
#include "wire/exchange_note.hpp"

// The way grouped of an exchange: who sends what to whom, and the rounds themselves, which run on the thread of the exchange's
// caller. That thread waits for the exchange anyway, and the session's goes on serving.
namespace shardwire {

/// A piece of what this member holds. Errors: throws Error{transport_failed} for one that it does not hold.
using HeldPiece = std::function<move::GroupedPiece(const wire::ExchangeRequest& request)>;
/// What `notes` ask of whom, as one member sees it: `incoming` by its own requests, in their order; `held` for those of others.
/// Members are called by their ranks in the group.
/// Errors: as `held`; throws Error{transport_failed} for a request that no member can answer.
move::GroupedJob grouped_job(std::span<const wire::ExchangeNote> notes, const GroupChoice& group, int member,
                             ByteCount staging_bytes, std::span<const move::GroupedPiece> incoming,
                             const HeldPiece& held);

/// One member's end of the group of an exchange.
/// Threads: one.
class ExchangeRounds {
 public:
  using Clock = std::chrono::steady_clock;

  /// Errors: as CollectiveTransport::open.
  ExchangeRounds(const transport::CollectiveTransport& collective, const transport::GroupSetup& setup);
  ExchangeRounds(const ExchangeRounds&) = delete;
  ExchangeRounds& operator=(const ExchangeRounds&) = delete;

  [[nodiscard]] int size() const { return collective_->size(); }
  /// See transport::Collective::is_stuck().
  [[nodiscard]] bool is_stuck() const { return collective_->is_stuck(); }

  struct Totals {
    std::uint64_t rounds = 0;
    ByteCount bytes = 0;  // that this member has received
    double seconds = 0;
    ByteCount staging_bytes = 0;
  };
  /// Why rounds are to end before they are over, if they are; asked often. What it throws is such a reason.
  using Stopped = std::function<std::optional<Error>()>;
  /// Returns when all that this member sends and receives is done.
  /// Errors: throws GroupFailed when another member has given up, or the group has failed by itself; what `stopped` says once
  ///         it does, Error{timed_out} at the deadline; and what goes wrong on this member alone. The group is given up
  ///         then, so that the others end too. Nothing touches any memory afterwards.
  Totals run(move::GroupedJob job, const Stopped& stopped, Clock::time_point deadline);
  /// For a member that does not come to the rounds: those of the others end.
  void give_up();

 private:
  Totals run_all(move::GroupedJob job, const Stopped& stopped, Clock::time_point deadline);
  void wait_for_news();
  void wake() const;
  transport::Memory staging(ByteCount bytes);

  transport::MemoryPlace place_;
  Bytes staging_;
  std::unique_ptr<memory::DeviceMemory> device_staging_;  // instead, on a device
  support::Descriptor copied_;                            // readable when copies are over
  memory::Copier copier_;
  std::unique_ptr<memory::CopyQueue> copies_;
  std::unique_ptr<transport::Collective> collective_;
};

/// Rounds that have come to no end are left behind whole: what a device may still write is nobody's to free, and to free other
/// memory of it would wait for them.
struct LeaveStuckRounds {
  void operator()(ExchangeRounds* rounds) const {
    if (!rounds->is_stuck()) delete rounds;  // NOLINT
  }
};
using OwnedRounds = std::unique_ptr<ExchangeRounds, LeaveStuckRounds>;

/// The group has come to its end without this member's doing: why, another one may know.
class GroupFailed : public Error {
 public:
  explicit GroupFailed(const transport::Fault& fault) : Error(fault.code, "the rounds have failed: " + fault.message) {}
};

}  // namespace shardwire
