// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <optional>

#include "control/operation.hpp"
#include "exchange/rounds.hpp"
#include "move/collective.hpp"
#include "restore/rounds_step.hpp"
#include "runtime/await.hpp"
#include "runtime/clock.hpp"

namespace shardwire {

/// The rounds of one step on the session's thread: driven by the fabric driver like a fabric, stopped by the restore
/// that they write for, by members that are gone or have given up, and by the deadline.
/// Threads: loop thread only.
class RoundsTask final : public Operation, private transport::Driven {
 public:
  /// Why this member has stopped the rounds; empty: they have ended by themselves.
  using End = std::optional<RoundsFailed>;

  /// Answers once, when it no longer accesses its arguments: the move is over, or the session has ended and its copies
  /// with it. Ownership: borrows all but the answer until then, and the clock until it is destroyed.
  RoundsTask(const RoundsContext& context, move::CollectiveMove& move, const ExchangeRounds::Step& step,
             Answer<End> answer);

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
  void stop(const Error& why, RoundsFailed::Cause cause = RoundsFailed::Cause::own);
  /// Polls what the fabric driver no longer drives.
  void poll();
  void leave(bool received);
  void finish();
  void answer();

  const RoundsContext& context_;
  move::CollectiveMove& move_;
  const ExchangeRounds::Step& step_;
  Answer<End> answer_;
  Timer deadline_;
  Timer retry_;  // when only the rate limit delays the next round, or nothing drives the rounds
  End end_;
  bool left_ = false;  // nothing drives the rounds here any more
  bool answered_ = false;
};

}  // namespace shardwire
