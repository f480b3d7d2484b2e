// SPDX-License-Identifier: Apache-2.0
#include "restore/slow_sources.hpp"

#include <algorithm>

namespace shardwire::restore {

namespace {

// Sources of equal speed differ by less: by the share of a link, or of a processor, that each of them gets.
constexpr double much_slower = 4;

}  // namespace

SlowSources::SlowSources(Clock& clock, Listener& listener, std::size_t sources, Duration notice)
    : listener_(listener),
      notice_(notice),
      begin_(sources),
      look_(clock, notice, [this](Clock::Time now, bool overslept) { look(now, overslept); }) {
}

void SlowSources::start() {
  begin_period(look_.start());
}

void SlowSources::begin_period(Clock::Time now) {
  began_ = now;
  for (std::size_t i = 0; i < begin_.size(); ++i) begin_[i] = listener_.delivery_of(i);
}

void SlowSources::look(Clock::Time now, bool overslept) {
  const double seconds = seconds_of(now - began_);
  if (overslept) {
    // A reader that slept knows how fast its sources are at least. It cannot tell how slow they are.
    note_paces(seconds, false);
    begin_period(now);
  } else if (now - began_ < notice_) {
    note_paces(seconds, true);
  } else {
    note_paces(seconds, false);
    const std::vector<std::size_t> slow = slow_in(seconds);
    begin_period(now);
    if (!slow.empty()) listener_.on_slow(slow);
  }
}

double SlowSources::pace_of(std::size_t source, double seconds) const {
  return static_cast<double>(listener_.delivery_of(source).arrived_bytes - begin_[source].arrived_bytes) / seconds;
}

// A source that is done within a period was at least so fast.
void SlowSources::note_paces(double seconds, bool of_done) {
  for (std::size_t i = 0; i < begin_.size(); ++i) {
    if (begin_[i].owed_bytes == 0 || (of_done && listener_.delivery_of(i).owed_bytes > 0)) continue;
    best_pace_ = std::max(best_pace_, pace_of(i, seconds));
  }
}

std::vector<std::size_t> SlowSources::slow_in(double seconds) const {
  std::vector<std::size_t> slow;
  for (std::size_t i = 0; i < begin_.size(); ++i) {
    const double pace = pace_of(i, seconds);
    const auto owed = static_cast<double>(listener_.delivery_of(i).owed_bytes);
    if (owed > pace * seconds_of(notice_) && pace * much_slower < best_pace_) slow.push_back(i);
  }
  return slow;
}

}  // namespace shardwire::restore
