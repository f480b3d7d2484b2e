// SPDX-License-Identifier: Apache-2.0
#include "restore/standstill.hpp"

namespace shardwire::restore {

std::optional<Duration> Standstill::look(std::size_t source, const Sample& sample, Clock::Time now, bool overslept) {
  Last& last = last_[source];
  if (overslept || !sample.under_way || sample.arrived_bytes != last.arrived_bytes) {
    last = {now, sample.arrived_bytes};
    return std::nullopt;
  }
  const Duration lasted = now - last.moved;
  if (lasted < sample.patience) return std::nullopt;
  last.moved = now;
  return lasted;
}

}  // namespace shardwire::restore
