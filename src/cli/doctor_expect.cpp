// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_expect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/command.hpp"
#include "cli/job_options.hpp"
#include "cli/text.hpp"
#include "support/nearest.hpp"
#include "transport/transport.hpp"

namespace shardwire::cli {
namespace {

constexpr double bytes_of_gigabyte = 1e9;

double parse_speed(std::string_view name, std::string_view text) {
  double speed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), speed);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(speed) || speed <= 0) {
    throw UsageError(fmt::format("--expect: {}='{}': expected a number of GB/s above 0", name, text));
  }
  return speed * bytes_of_gigabyte;
}

std::string parse_transport(std::string_view name) {
  const auto known = transport::registered();
  if (std::ranges::find(known, name, &transport::Transport::name) == known.end()) {
    throw UsageError(
        fmt::format("--expect: transport '{}' is unknown{}", name, support::known_words(name, transport_names())));
  }
  return std::string(name);
}

void parse_part(std::string_view part, Expectation& expected) {
  const std::size_t equals = std::min(part.find('='), part.size());
  const std::string_view name = part.substr(0, equals);
  const std::string_view value = part.substr(std::min(equals + 1, part.size()));
  if (name == "floor") {
    expected.floor = parse_speed(name, value);
  } else if (name == "ceiling") {
    expected.ceiling = parse_speed(name, value);
  } else if (name == "transport") {
    expected.transport = parse_transport(value);
  } else {
    throw UsageError(
        fmt::format("--expect: '{}' is unknown{}", name, support::known_words(name, "floor, ceiling, transport")));
  }
}

// Of the transport of a path, "tcp/packed".
Reach reach_of(std::string_view path) {
  const auto known = transport::registered();
  const auto row = std::ranges::find(known, path.substr(0, path.find('/')), &transport::Transport::name);
  return row == known.end() ? Reach::network : row->reach;
}

// `rows`: the paths from one rank to another, which work at the same time.
void judge_pair(const Expectation& expected, const std::string& subject, std::span<const PeerReport> rows,
                std::vector<perf::Flag>& flags) {
  ByteCount bytes = 0;
  double seconds = 0;
  std::string by;
  for (const PeerReport& row : rows) {
    bytes += row.bytes;
    seconds = std::max(seconds, row.measured_seconds);
    by += fmt::format("{}{} ({})", by.empty() ? "" : ", ", row.path, row.device);
    if (expected.transport.empty() || row.path.starts_with(expected.transport + "/")) continue;
    flags.push_back({"transport", subject,
                     fmt::format("is over {} ({}), expected is {}{}{}", row.path, row.device, expected.transport,
                                 row.fallback_detail.empty() ? "" : ": ", row.fallback_detail)});
  }
  if (!expected.of_speed()) return;
  const double speed = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  const std::string measured = fmt::format("moved {} at {} by {}", human_bytes(bytes), human_speed(speed), by);
  if (speed < expected.floor) {
    flags.push_back(
        {"below floor", subject, fmt::format("{}, expected are at least {}", measured, human_speed(expected.floor))});
  } else if (speed > expected.ceiling) {
    flags.push_back({"above ceiling", subject,
                     fmt::format("{}, expected are at most {}: the bytes took another way, or are too few to measure",
                                 measured, human_speed(expected.ceiling))});
  }
}

}  // namespace

Expectation parse_expectation(std::string_view text) {
  Expectation expected;
  for (std::size_t comma; (comma = text.find(',')) != std::string_view::npos; text.remove_prefix(comma + 1)) {
    parse_part(text.substr(0, comma), expected);
  }
  parse_part(text, expected);
  if (expected.floor > expected.ceiling) throw UsageError("--expect: the floor is above the ceiling");
  return expected;
}

std::vector<perf::Flag> unmet(const Expectation& expected, std::span<const MemberResult> results) {
  std::vector<perf::Flag> flags;
  const Reach least = expected.transport.empty() ? Reach::process : reach_of(expected.transport);
  bool any = false;
  for (const MemberResult& result : results) {
    std::vector<PeerReport> rows = result.report.peers;  // ascending by rank
    std::erase_if(rows, [&](const PeerReport& row) {
      return row.path == "local" || row.bytes == 0 || reach_of(row.path) < least;
    });
    for (auto first = rows.begin(); first != rows.end();) {
      const auto last = std::find_if(first, rows.end(), [&](const PeerReport& row) { return row.rank != first->rank; });
      judge_pair(expected, fmt::format("target {} <- source {}", to_int(*result.target), to_int(first->rank)),
                 {first, last}, flags);
      any = true;
      first = last;
    }
  }
  if (!any) flags.push_back({"no path", "the case", "has no path between ranks to compare"});
  return flags;
}

}  // namespace shardwire::cli
