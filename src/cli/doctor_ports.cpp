// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_ports.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/output.hpp"
#include "cli/text.hpp"

namespace shardwire::cli {
namespace {

using Json = nlohmann::json;

// A working port reaches more than half of its rate; memory and processors may also delay the reader.
constexpr double far_below_line = 0.25;
// A transfer that takes a port less than this ends before the port reaches its speed.
constexpr double min_line_seconds = 1e-3;

}  // namespace

std::vector<PortShare> port_shares(std::span<const MemberResult> results) {
  struct Sum {
    PortShare share;
    ByteCount bytes = 0;
    double seconds = 0;
  };
  std::map<std::pair<std::string, std::string>, Sum> ports;
  for (const MemberResult& result : results) {
    for (const perf::PortBytes& one : result.ports) {
      if (!result.target || one.bytes == 0 || one.line_bytes_per_second <= 0) continue;
      Sum& sum = ports[{one.domain, one.port}];
      sum.share.port = one.port;
      sum.share.targets.push_back(*result.target);
      sum.share.line_bytes_per_second = one.line_bytes_per_second;
      sum.bytes += one.bytes;
      sum.seconds = std::max(sum.seconds, result.report.seconds.move);
    }
  }
  std::vector<PortShare> shares;
  for (auto& [name, sum] : ports) {
    if (sum.seconds <= 0) continue;
    PortShare& share = sum.share;
    const auto bytes = static_cast<double>(sum.bytes);
    share.bytes_per_second = bytes / sum.seconds;
    share.is_far_below = share.share() < far_below_line && bytes / share.line_bytes_per_second >= min_line_seconds;
    shares.push_back(std::move(share));
  }
  return shares;
}

std::string port_line(const PortShare& share, bool json) {
  std::vector<int> targets;
  for (const Rank rank : share.targets) targets.push_back(to_int(rank));
  std::string says =
      fmt::format("moved {} to targets {}, {:.0f} % of its line rate of {}", human_speed(share.bytes_per_second),
                  fmt::join(targets, ", "), 100 * share.share(), human_speed(share.line_bytes_per_second));
  if (share.is_far_below) says += ": far below; `perf --pairs` measures it alone";
  if (!json) return fmt::format("  {:<14}{} {}", share.is_far_below ? "slow port" : "port", share.port, says);
  Json row{{"port", share.port},
           {"targets", targets},
           {"bytes_per_second", share.bytes_per_second},
           {"line_bytes_per_second", share.line_bytes_per_second},
           {"share_of_line", share.share()}};
  if (share.is_far_below) {
    row["flag"] = "slow port";
    row["subject"] = share.port;
    row["says"] = says;
  }
  return row.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void print_port_shares(const std::vector<PortShare>& shares, bool json) {
  if (!json && !shares.empty()) write_output("\nports, while all of it was moved\n");
  for (const PortShare& one : shares) write_output(port_line(one, json) + "\n");
}

}  // namespace shardwire::cli
