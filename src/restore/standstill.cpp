// SPDX-License-Identifier: Apache-2.0
#include "restore/standstill.hpp"

namespace shardwire::restore {

Standstill::Standstill(Clock& clock, Listener& listener, std::size_t sources, Duration notice)
    : listener_(listener),
      last_(sources),
      look_(clock, notice, [this](Clock::Time now, bool overslept) { look(now, overslept); }) {
}

void Standstill::start() {
  const Clock::Time now = look_.start();
  for (Last& one : last_) one.moved = now;
}

void Standstill::look(Clock::Time now, bool overslept) {
  for (std::size_t i = 0; i < last_.size() && !look_.stopped(); ++i) {
    const Delivery delivery = listener_.asked_of(i);
    Last& last = last_[i];
    if (overslept || !delivery.under_way || delivery.arrived_bytes != last.arrived_bytes) {
      last = {now, delivery.arrived_bytes};
    } else if (const Duration lasted = now - last.moved; lasted >= delivery.patience) {
      last.moved = now;
      listener_.on_standstill(i, lasted);
    }
  }
}

}  // namespace shardwire::restore
