// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "perf/board.hpp"

namespace shardwire::perf {

/// One comparison: what a restore is measured beside, and by whom.
struct Comparison {
  Case job;
  bool tcp = false;  ///< over TCP, sources and targets in processes of their own
  int repeats = 5;   ///< that are timed; one more warms up
  std::uint16_t port = 0;

  [[nodiscard]] int members() const;
  /// Names, in the order in which they take turns; the restore is the last, so that its bytes are there to be checked.
  [[nodiscard]] std::vector<std::string> contenders() const;
};

/// What each process of a run does. Errors: throws.
void run_member(const Comparison& comparison, Board& board, int member);

}  // namespace shardwire::perf
