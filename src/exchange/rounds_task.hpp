// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <optional>

#include "control/operation.hpp"
#include "exchange/host.hpp"
#include "move/collective.hpp"
#include "restore/rounds_step.hpp"
#include "runtime/await.hpp"
#include "runtime/clock.hpp"

namespace shardwire {

/// How the rounds of one step ended on this member.
struct RoundsEnd {
  std::optional<Error> stopped{};   ///< why this member stopped them; empty: they ended by themselves
  bool restore_ended = false;       ///< because its own restore had ended
  bool given_up_elsewhere = false;  ///< because another member has given the exchange up and knows the reason
};

/// The rounds of one step on the session's thread: driven by the fabric driver like a fabric, stopped by the restore
/// that they write for, by members that are gone or have given up, and by the deadline.
/// Threads: loop thread only.
class RoundsTask final : public Operation, private transport::Driven {
 public:
  struct Setup {
    /// Null: this member only takes part for the others. Owners: the exchange and its restore.
    std::shared_ptr<RoundsStep> step;
    bool writes = false;       ///< for this member's restore
    std::vector<int> members;  ///< of the group
    Clock::Time deadline;
  };

  /// Answers once, when it no longer accesses the move: this is over, or the session has ended and its copies with it.
  /// Ownership: borrows what the context refers to, and move, until then.
  RoundsTask(RoundsContext context, move::CollectiveMove& move, Setup setup, Answer<RoundsEnd> answer);

  void start() override;
  void directory_changed() override;
  void fabric_broke(const std::exception_ptr& error) override;
  void stop_writing() override;  // written() says true: the thread of the exchange waits for the last round
  void abandon() override;

 private:
  bool progress() override;
  [[nodiscard]] int event_descriptor() const override { return move_.event_descriptor(); }
  bool arm() override { return !move_.over() && move_.arm(); }

  void begin_writing();
  void stop(const Error& why);
  /// Polls what the fabric driver no longer drives.
  void poll();
  void leave(bool received);
  void finish();
  void answer();

  RoundsContext context_;
  move::CollectiveMove& move_;
  Setup setup_;
  Answer<RoundsEnd> answer_;
  Timer deadline_;
  Timer retry_;  // when only the rate limit delays the next round, or nothing drives the rounds
  RoundsEnd end_;
  bool left_ = false;  // nothing drives the rounds here any more
  bool answered_ = false;
};

}  // namespace shardwire
