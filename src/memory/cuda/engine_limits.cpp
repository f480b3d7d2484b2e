// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/engine_limits.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace shardwire::memory::cuda {
namespace {

constexpr std::array<ByteCount, 5> run_lengths{trial_bytes, 256u << 10, 64u << 10, 16u << 10, 4u << 10};
constexpr int samples = 3;  // the fastest counts: disturbances only slow down
constexpr double max_seconds = 20e-3;

}  // namespace

ByteCount& EngineLimits::of(Direction direction) {
  switch (direction) {
    case Direction::inside: return inside;
    case Direction::to_host: return to_host;
    case Direction::from_host: break;
  }
  return from_host;
}

ByteCount EngineLimits::of(Direction direction) const {
  return EngineLimits(*this).of(direction);
}

EngineLimits measure_engine_limits(TimeTrial seconds_of) {
  EngineLimits limits;
  double spent = 0;
  const auto engine_wins = [&](Direction direction, ByteCount run_bytes) {
    double engine = std::numeric_limits<double>::max();
    double kernel = engine;
    for (int sample = 0; sample < samples; ++sample) {
      for (const bool by_engine : {true, false}) {
        const double seconds = seconds_of(direction, run_bytes, by_engine);
        double& best = by_engine ? engine : kernel;
        best = std::min(best, seconds);
        spent += seconds;
      }
    }
    return engine < kernel;
  };
  for (const Direction direction : {Direction::from_host, Direction::to_host, Direction::inside}) {
    if (spent > max_seconds) break;
    ByteCount limit = EngineLimits::never;
    for (const ByteCount run_bytes : run_lengths) {
      if (spent > max_seconds || !engine_wins(direction, run_bytes)) break;
      limit = run_bytes;
    }
    limits.of(direction) = limit;
  }
  return limits;
}

}  // namespace shardwire::memory::cuda
