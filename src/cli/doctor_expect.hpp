// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run_result.hpp"
#include "perf/measure/port_flags.hpp"

namespace shardwire::cli {

/// Requirements for the paths between the ranks of a case: the value of `doctor CASE --expect`.
struct Expectation {
  double floor = 0;  ///< bytes per second
  double ceiling = std::numeric_limits<double>::infinity();
  std::string transport{};  ///< empty: any

  [[nodiscard]] bool of_speed() const { return floor > 0 || ceiling < std::numeric_limits<double>::infinity(); }
};

/// "floor=20,ceiling=50,transport=ucx", with numbers in GB/s. Errors: throws UsageError.
Expectation parse_expectation(std::string_view text);

/// Returns a flag for each pair of ranks that is slower or faster, and for each path over another transport; one flag if none is judged.
/// Bytes that stay in their process are not judged. If a transport between hosts is expected, paths over a transport within a host are not
/// judged either: ranks of one host use it by design. `results`: of target ranks.
std::vector<perf::Flag> unmet(const Expectation& expected, std::span<const MemberResult> results);

}  // namespace shardwire::cli
