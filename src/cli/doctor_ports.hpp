// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/run_result.hpp"

// What ports brought while the state of a case was moved, beside what they let through.
namespace shardwire::cli {

struct PortShare {
  std::string port;                  ///< of one host: there may be one of this name on each
  std::vector<Rank> targets{};       ///< that got something through it
  double bytes_per_second = 0;       ///< while the slowest of them moved
  double line_bytes_per_second = 0;  ///< each way
  bool is_far_below = false;         ///< its rate, with bytes enough to tell

  [[nodiscard]] double share() const { return bytes_per_second / line_bytes_per_second; }
};
/// Those that tell their rate.
std::vector<PortShare> port_shares(std::span<const MemberResult> results);

/// For people, or a row of JSON, which is a flag where the port is far below.
std::string port_line(const PortShare& share, bool json);
/// All of them, under a title for people.
void print_port_shares(const std::vector<PortShare>& shares, bool json);

}  // namespace shardwire::cli
