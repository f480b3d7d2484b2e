// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "restore/owner.hpp"
#include "runtime/clock.hpp"
#include "shardwire/options.hpp"

namespace shardwire::restore {

/// How long a restore has stood still: neither its stage, nor its bytes, nor the number of answers where none move, has changed.
/// Threads: loop thread only.
class WaitClock {
 public:
  /// The length of a wait when it reaches 2 s, 4 s, 8 s and so on. Empty at all other times.
  std::optional<Duration> look(Clock::Time now, Stage stage, std::uint64_t advance) {
    if (!since_ || stage != stage_ || advance != advance_) {
      since_ = now;
      stage_ = stage;
      advance_ = advance;
      next_ = first;
    }
    const Duration lasts = now - *since_;
    if (lasts < next_) return std::nullopt;
    while (next_ <= lasts) next_ *= 2;
    return lasts;
  }

 private:
  static constexpr Duration first = std::chrono::seconds(2);

  std::optional<Clock::Time> since_;  // empty before the first look
  Stage stage_{};
  std::uint64_t advance_ = 0;
  Duration next_ = first;
};

}  // namespace shardwire::restore
