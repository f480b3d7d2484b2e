// SPDX-License-Identifier: Apache-2.0
#include "restore/silence.hpp"

#include <algorithm>

namespace shardwire::restore {

Silence::Found Silence::look(std::span<const Sample> samples, Clock::Time now, bool overslept) {
  if (overslept) {
    for (Heard& one : heard_) one.since = now;
  }
  Found found;
  bool in_doubt = false;
  for (const auto& source : sources_) {
    const Sample& sample = samples[source->index()];
    const Duration silence = silence_of(*source, sample, now);
    in_doubt = in_doubt || (sample.due && silence >= notice_ / 2);
    if (sample.due && silence >= notice_) {
      found.silent.push_back(source.get());
    } else if (silence >= notice_ / 2 + 2 * interval_) {  // was asked, and had time to answer
      found.doubtful.push_back(source.get());
    }
  }
  in_doubt_ = in_doubt;
  return found;
}

// A source that owes nothing is asked for a sign of life only while another one is silent, whose place it may have to take;
// then at once, however long it has sent nothing.
Duration Silence::silence_of(const Source& source, const Sample& sample, Clock::Time now) {
  Heard& heard = heard_[source.index()];
  const bool counts = sample.due || (in_doubt_ && !sample.nothing_more);
  if (sample.arrived_bytes != heard.arrived_bytes || !counts) heard = {now, sample.arrived_bytes};
  if (!counts) return {};
  const auto answered = source.heard(notice_ / 2);
  const Clock::Time since = sample.due ? heard.since : heard.since - notice_ / 2;
  return now - std::max(since, answered.value_or(now));
}

}  // namespace shardwire::restore
