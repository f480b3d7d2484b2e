// SPDX-License-Identifier: Apache-2.0
#include "restore/clocks.hpp"

namespace shardwire::restore {

namespace {

// Of a stage that has an account.
const char* span_name_of(Stage stage) {
  constexpr const char* names[] = {"shardwire.restore.plan", "shardwire.restore.bind", "shardwire.restore.move",
                                   "shardwire.restore.verify", "shardwire.restore.commit"};
  return names[static_cast<std::size_t>(stage)];
}

}  // namespace

StageClock::StageClock(const Clock& clock, Clock::Time began, double join_seconds, bool keeps_spans)
    : clock_(clock), began_(began), stage_began_(began), keeps_spans_(keeps_spans) {
  seconds_.join = join_seconds;
  if (!keeps_spans_) return;
  spans_.reserve(8);  // few restores have more
  spans_.push_back({"shardwire.restore", began, began});
}

void StageClock::enter(Stage stage) {
  const Clock::Time now = clock_.now();
  *account_ += seconds_of(now - stage_began_);
  if (keeps_spans_) {
    spans_.front().ended = now;
    if (spans_.size() < max_spans) spans_.push_back({account_name_, stage_began_, now});
  }
  stage_began_ = now;
  stage_ = stage;
  switch (stage) {
    case Stage::plan: account_ = &seconds_.plan; break;
    case Stage::bind: account_ = &seconds_.bind; break;
    case Stage::move: account_ = &seconds_.move; break;
    case Stage::verify: account_ = &seconds_.verify; break;
    case Stage::commit: account_ = &seconds_.commit; break;
    case Stage::stopping: return;
    case Stage::done:
    case Stage::failed:
      stage_range_.end();
      restore_range_.end();
      return;
  }
  account_name_ = span_name_of(stage);
  stage_range_.begin(account_name_);
}

StageSeconds StageClock::seconds() const {
  StageSeconds seconds = seconds_;
  seconds.wall = seconds_.join + seconds_of(stage_began_ - began_);
  return seconds;
}

}  // namespace shardwire::restore
