// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "shardwire/options.hpp"
#include "support/splitmix64.hpp"

namespace shardwire::simulation {

/// A seeded source of numbers. Equal seeds give equal numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    const std::uint64_t number = support::splitmix64(state_);
    state_ += support::splitmix64_step;
    return number;
  }
  /// 0 .. end - 1. Requires: end > 0.
  std::uint64_t below(std::uint64_t end) { return next() % end; }
  /// lower .. upper, both included.
  int between(int lower, int upper) {
    return lower + static_cast<int>(below(static_cast<std::uint64_t>(upper - lower) + 1));
  }
  Duration between(Duration lower, Duration upper) {
    return lower + Duration(static_cast<std::int64_t>(below(static_cast<std::uint64_t>((upper - lower).count()) + 1)));
  }
  /// Spread evenly over the powers of two between the two: short times are as likely as long ones.
  Duration spread(Duration lower, Duration upper) {
    std::uint64_t doublings = 0;
    while (lower * (std::int64_t{1} << doublings) < upper) ++doublings;
    const std::uint64_t some = below(doublings + 1);
    return between(some == 0 ? lower : lower * (std::int64_t{1} << (some - 1)),
                   std::min(upper, lower * (std::int64_t{1} << some)));
  }
  bool percent(unsigned chance) { return below(100) < chance; }
  /// A source of its own, so that the numbers here do not depend on how many are drawn there.
  Random fork() { return Random(next()); }

 private:
  std::uint64_t state_;
};

}  // namespace shardwire::simulation
