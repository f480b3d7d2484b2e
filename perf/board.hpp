// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "perf/processes.hpp"

namespace shardwire::perf {

inline constexpr int most_members = 64;
inline constexpr int most_contenders = 6;
inline constexpr int most_repeats = 64;

/// When one member was busy, on the clock that all processes of a host share.
struct Span {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// Of one restore, by stage in the order of StageSeconds, and in all.
struct Stages {
  double wall = 0;
  std::array<double, 6> seconds{};
};
inline constexpr std::array<const char*, 6> stage_names{"join", "plan", "bind", "move", "verify", "commit"};

/// What one member did.
struct MemberFacts {
  std::uint64_t needed = 0;
  std::uint64_t moved = 0;
  std::uint64_t local = 0;
  std::uint64_t mapped = 0;
  std::uint64_t packed = 0;
  std::uint64_t elements = 0;  ///< compared at the end, all right
  std::array<Stages, most_repeats> stages{};
};

/// Lies in a page that all processes of a run share: plain data only, written by one member each.
struct Board {
  Barrier barrier;
  std::array<char, 64> fabric{};
  struct WorkerAddress {
    std::uint32_t size = 0;
    std::array<std::byte, 4092> bytes{};
  };
  std::array<WorkerAddress, most_members> addresses{};
  std::array<MemberFacts, most_members> facts{};
  /// Repeat 0 is the one that warms up.
  std::array<std::array<std::array<Span, most_members>, most_repeats>, most_contenders> spans{};
};

}  // namespace shardwire::perf
