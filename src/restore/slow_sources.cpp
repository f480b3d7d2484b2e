// SPDX-License-Identifier: Apache-2.0
#include "restore/slow_sources.hpp"

#include <algorithm>

namespace shardwire::restore {

namespace {

// Sources of equal speed differ by less: by the share of a link, or of a processor, that each of them gets.
constexpr double much_slower = 4;

}  // namespace

void SlowSources::begin(Samples samples, Clock::Time now) {
  began_ = now;
  begin_.assign(samples.begin(), samples.end());
}

std::vector<std::size_t> SlowSources::look(Samples samples, Clock::Time now, bool overslept) {
  const double seconds = seconds_of(now - began_);
  const bool over = now - began_ >= notice_;
  note_paces(samples, seconds, !overslept && !over);
  if (!overslept && !over) return {};
  // A reader that slept knows how fast its sources are at least. It cannot tell how slow they are.
  std::vector<std::size_t> slow = overslept ? std::vector<std::size_t>() : slow_in(samples, seconds);
  begin(samples, now);
  return slow;
}

double SlowSources::pace_of(Samples samples, std::size_t source, double seconds) const {
  return static_cast<double>(samples[source].arrived_bytes - begin_[source].arrived_bytes) / seconds;
}

// A source that is done within a period was at least so fast.
void SlowSources::note_paces(Samples samples, double seconds, bool of_done) {
  for (std::size_t i = 0; i < begin_.size(); ++i) {
    if (begin_[i].owed_bytes == 0 || (of_done && samples[i].owed_bytes > 0)) continue;
    best_pace_ = std::max(best_pace_, pace_of(samples, i, seconds));
  }
}

std::vector<std::size_t> SlowSources::slow_in(Samples samples, double seconds) const {
  std::vector<std::size_t> slow;
  for (std::size_t i = 0; i < begin_.size(); ++i) {
    const double pace = pace_of(samples, i, seconds);
    const auto owed = static_cast<double>(samples[i].owed_bytes);
    if (owed > pace * seconds_of(notice_) && pace * much_slower < best_pace_) slow.push_back(i);
  }
  return slow;
}

}  // namespace shardwire::restore
