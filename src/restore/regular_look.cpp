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
      looked_(clock.now()),
      timer_(clock) {
}

void RegularLook::start() {
  timer_.start(interval_, [this] { look(); });
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
  if (!stopped_) start();
}

}  // namespace shardwire::restore
