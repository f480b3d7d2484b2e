// SPDX-License-Identifier: Apache-2.0
#include "restore/silence.hpp"

#include <algorithm>

namespace shardwire::restore {

Silence::Silence(Clock& clock, Listener& listener, std::span<const std::unique_ptr<Source>> sources, Duration notice)
    : listener_(listener),
      sources_(sources),
      notice_(notice),
      look_(clock, notice, [this](Clock::Time now, bool overslept) { look(now, overslept); }) {
}

void Silence::start() {
  heard_.assign(sources_.size(), {look_.start(), 0});
}

void Silence::look(Clock::Time now, bool overslept) {
  if (overslept) {
    for (Heard& one : heard_) one.since = now;
  }
  std::vector<Source*> silent;
  std::vector<Source*> doubtful;
  bool in_doubt = false;
  for (const auto& source : sources_) {
    const Duration silence = silence_of(*source, now);
    const bool owes = listener_.due_from(*source).anything;
    in_doubt = in_doubt || (owes && silence >= notice_ / 2);
    if (owes && silence >= notice_) {
      silent.push_back(source.get());
    } else if (silence >= notice_ / 2 + 2 * look_.interval()) {  // was asked, and had time to answer
      doubtful.push_back(source.get());
    }
  }
  in_doubt_ = in_doubt;
  if (!silent.empty()) listener_.on_silent(silent, doubtful);
}

// Who owes nothing is asked for a sign of life only while another one is silent, whose place it may have to take; then at
// once, however long nothing was heard.
Duration Silence::silence_of(Source& source, Clock::Time now) {
  Heard& heard = heard_[source.index()];
  const Due due = listener_.due_from(source);
  const bool counts = due.anything || (in_doubt_ && !due.nothing_more);
  if (due.arrived_bytes != heard.arrived_bytes || !counts) heard = {now, due.arrived_bytes};
  if (!counts) return {};
  const auto answered = source.heard(notice_ / 2);
  const Clock::Time since = due.anything ? heard.since : heard.since - notice_ / 2;
  return now - std::max(since, answered.value_or(now));
}

}  // namespace shardwire::restore
