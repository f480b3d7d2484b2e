// SPDX-License-Identifier: Apache-2.0
#include "restore/regular_look.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace shardwire::restore {

using namespace std::chrono_literals;

RegularLook::RegularLook(Clock& clock, Duration notice, Look look)
    : clock_(clock),
      look_(std::move(look)),
      interval_(std::clamp<Duration>(notice / 20, 10ms, 250ms)),
      overslept_(3 * std::clamp<Duration>(notice / 10, 10ms, 250ms)),
      timer_(clock) {
}

Clock::Time RegularLook::start() {
  looked_ = clock_.now();
  timer_.start(interval_, [this] { look(); });
  return looked_;
}

void RegularLook::stop() {
  stopped_ = true;
  timer_.stop();
}

void RegularLook::look() {
  const Clock::Time now = clock_.now();
  const bool overslept = now - looked_ > overslept_;
  looked_ = now;
  look_(now, overslept);
  if (!stopped_) timer_.start(interval_, [this] { look(); });
}

}  // namespace shardwire::restore
