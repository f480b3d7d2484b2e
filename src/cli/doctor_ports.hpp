// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/run_result.hpp"

// Bandwidth of ports while the state of a case was moved, compared with their line rate.
namespace shardwire::cli {

struct PortShare {
  std::string port;                  ///< of one host: another host may have a port of the same name
  std::vector<Rank> targets{};       ///< that received bytes through it
  double bytes_per_second = 0;       ///< while the slowest of them moved
  double line_bytes_per_second = 0;  ///< per direction
  bool is_far_below = false;         ///< its rate, with enough bytes to judge

  [[nodiscard]] double share() const { return bytes_per_second / line_bytes_per_second; }
};
/// The ports that report their rate.
std::vector<PortShare> port_shares(std::span<const MemberResult> results);

/// For people, or a row of JSON, which is a flag if the port is far below its rate.
std::string port_line(const PortShare& share, bool json);
/// All of them, under a title for people.
void print_port_shares(const std::vector<PortShare>& shares, bool json);

}  // namespace shardwire::cli
