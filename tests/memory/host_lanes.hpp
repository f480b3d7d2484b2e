// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "memory/device_copy/lanes_hash.hpp"

namespace shardwire::test {

/// The lanes of a warp, one after the other, in an order that the caller chooses.
class HostLanes {
 public:
  explicit HostLanes(unsigned first = 0) : first_(first) {}

  template <typename Body>
  void each(Body body) {
    for (unsigned i = 0; i < memory::hash_lanes; ++i) {
      const unsigned lane = (i + first_) % memory::hash_lanes;
      body(lane, states_[lane]);
    }
  }
  void add_up() {
    constexpr unsigned sums = memory::xxh3::lanes;
    std::array<std::uint64_t, sums> more{};
    for (unsigned lane = 0; lane < states_.size(); ++lane) {
      more[lane % sums] += states_[lane].products;
      more[(lane ^ 1) % sums] += states_[lane].words;
    }
    for (unsigned lane = 0; lane < states_.size(); ++lane) states_[lane].sum += more[lane % sums];
  }
  void collect(std::uint64_t (&sums)[memory::xxh3::lanes]) const {
    for (unsigned lane = 0; lane < memory::xxh3::lanes; ++lane) sums[lane] = states_[lane].sum;
  }

 private:
  unsigned first_;
  std::array<memory::HashLane, memory::hash_lanes> states_{};
};

}  // namespace shardwire::test
