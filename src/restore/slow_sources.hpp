// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "restore/regular_look.hpp"
#include "runtime/clock.hpp"
#include "shardwire/options.hpp"

namespace shardwire::restore {

/// Finds sources that have become a bottleneck: each delivers at less than a quarter of the best pace that this restore has
/// seen, its own earlier one included, and at that pace needs longer than `notice` for what it still owes. A restore whose
/// sources were slow from the first byte on has nothing to compare with, and finds none.
/// Threads: loop thread only.
class SlowSources {
 public:
  using Samples = std::span<const Sample>;  ///< by source

  explicit SlowSources(Duration notice) : notice_(notice) {}

  /// Begins a period.
  void begin(Samples samples, Clock::Time now);
  /// The slow ones, at the end of each period of `notice`; else none.
  [[nodiscard]] std::vector<std::size_t> look(Samples samples, Clock::Time now, bool overslept);

 private:
  [[nodiscard]] double pace_of(Samples samples, std::size_t source, double seconds) const;
  void note_paces(Samples samples, double seconds, bool of_done);
  [[nodiscard]] std::vector<std::size_t> slow_in(Samples samples, double seconds) const;

  Duration notice_;
  std::vector<Sample> begin_;  // of the period, by source
  Clock::Time began_{};        // the period
  double best_pace_ = 0;       // bytes per second
};

}  // namespace shardwire::restore
