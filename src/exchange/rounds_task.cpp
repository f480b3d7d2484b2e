// SPDX-License-Identifier: Apache-2.0
#include "exchange/rounds_task.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "shardwire/options.hpp"

namespace shardwire {

namespace {

constexpr auto poll_interval = std::chrono::milliseconds(1);

Error error_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    return reason;
  } catch (const std::exception& reason) {
    return {ErrorCode::internal, reason.what()};
  }
}

}  // namespace

RoundsTask::RoundsTask(const RoundsContext& context, move::CollectiveMove& move, const ExchangeRounds::Step& step,
                       Answer<End> answer)
    : context_(context),
      move_(move),
      step_(step),
      answer_(std::move(answer)),
      deadline_(*context.loop),
      retry_(*context.loop) {
}

void RoundsTask::start() {
  try {
    move_.begin([&loop = *context_.loop] { return loop.now(); }, context_.copies);
    begin_writing();
    context_.driver.add(*this);
    deadline_.start(std::max(Duration::zero(), Duration(step_.deadline - context_.loop->now())), [this] {
      std::vector<Rank> waited_for;
      for (const int peer : move_.peers()) waited_for.push_back(Rank{step_.members[static_cast<std::size_t>(peer)]});
      stop(Error(ErrorCode::timed_out, "the rounds of the exchange were not over by its deadline",
                 std::move(waited_for)));
    });
    directory_changed();
  } catch (const std::exception&) {
    fabric_broke(std::current_exception());
  }
}

void RoundsTask::begin_writing() {
  const auto stopped = [this] {
    stop(Error(ErrorCode::cancelled, "the restore of this member has ended"));
    if (end_) end_->cause = RoundsFailed::Cause::restore;  // also if something else has stopped them before
  };
  if (step_.writes && !step_.restore->open(stopped)) stopped();
}

// NCCL does not report that a member is gone or has stopped.
void RoundsTask::directory_changed() {
  if (left_ || end_) return;
  const FailureNotices notices = step_.failure_notices();
  for (const int member : notices.departed) {
    if (std::ranges::find(step_.members, member) == step_.members.end()) continue;
    return stop(Error(ErrorCode::peer_lost,
                      fmt::format("member {} is gone in the middle of the rounds of the exchange", member),
                      std::vector<Rank>{Rank{member}}));
  }
  if (!notices.given_up) return;
  stop(Error(ErrorCode::cancelled, "another member has given the exchange up"), RoundsFailed::Cause::others);
}

bool RoundsTask::progress() {
  bool moved = false;
  try {
    moved = move_.progress();
  } catch (const std::exception&) {  // of the group; the fabrics are well
    stop(error_of(std::current_exception()));
  }
  if (move_.over()) {
    finish();
    return true;
  }
  if (const auto retry = move_.retry_at()) {
    retry_.start(std::max(Duration::zero(), Duration(*retry - context_.loop->now())), [] {});  // only wakes the loop
  }
  return moved;
}

// The rounds end in order: once no memory is accessed any more.
void RoundsTask::stop(const Error& why, RoundsFailed::Cause cause) {
  if (left_ || end_) return;
  end_.emplace(why, cause);
  deadline_.stop();
  if (!move_.fault()) move_.abort();
}

void RoundsTask::fabric_broke(const std::exception_ptr& error) {
  if (left_) return;
  stop(error_of(error));
  poll();
}

void RoundsTask::poll() {
  progress();
  if (!left_) retry_.start(poll_interval, [this] { poll(); });
}

void RoundsTask::leave(bool received) {
  left_ = true;
  deadline_.stop();
  retry_.stop();
  context_.driver.remove(*this);
  if (step_.restore) step_.restore->close(received);
}

void RoundsTask::finish() {
  leave(!end_ && !move_.fault());
  context_.finished(*this);
  answer();  // ends the borrowing of the context and the move
}

void RoundsTask::answer() {
  if (!std::exchange(answered_, true)) answer_.give(std::move(end_));
}

void RoundsTask::stop_writing() {
  if (left_) return;
  stop(LoopEnded());
  end_.emplace(LoopEnded());  // also if the restore was told first
  leave(false);
}

void RoundsTask::abandon() {
  answer();
}

}  // namespace shardwire
