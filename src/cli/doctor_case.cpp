// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/doctor_host.hpp"
#include "cli/doctor_links.hpp"
#include "cli/doctor_ports.hpp"
#include "cli/environment.hpp"
#include "cli/job_options.hpp"
#include "cli/output.hpp"
#include "cli/run_buffers.hpp"
#include "cli/run_job.hpp"
#include "cli/run_memory.hpp"
#include "cli/run_report.hpp"
#include "cli/text.hpp"
#include "support/checked.hpp"
#include "support/stderr.hpp"
#include "transport/rdma.hpp"

namespace shardwire::cli {
namespace {

using Json = nlohmann::json;
using Rows = std::vector<PeerReport>;

struct Line {
  std::string pair;
  std::string methods;
  std::string expected;
  std::string measured;  // empty if nothing has moved
  std::string carriers;
};

// Everything that one rank receives from another. Its paths work at the same time.
Line line_of(Rank target, std::span<const PeerReport> rows) {
  Line line;
  std::string reasons;
  ByteCount bytes = 0;
  double seconds = 0;
  double measured = 0;
  const auto add = [](std::string& list, const std::string& one, const char* separator) {
    if (one.empty() || list.find(one) != std::string::npos) return;
    list += (list.empty() ? "" : separator) + one;
  };
  for (const PeerReport& row : rows) {
    line.methods += fmt::format("{}{} {}", line.methods.empty() ? "" : ", ", row.path, human_bytes(row.bytes));
    add(line.carriers, row.device, ", ");
    add(reasons, row.fallback_detail, "; ");
    bytes += row.bytes;
    seconds += row.predicted_seconds;
    measured = std::max(measured, row.measured_seconds);
  }
  line.pair = fmt::format("{:>4} <- {}", to_int(target), to_int(rows.front().rank));
  line.expected = fmt::format("{:>8}, {}", human_seconds(seconds), human_speed(bytes, seconds));
  if (measured > 0) line.measured = fmt::format("{:>8}, {}", human_seconds(measured), human_speed(bytes, measured));
  if (!reasons.empty()) line.carriers += "; not better: " + reasons;
  return line;
}

void print(const std::vector<Line>& lines) {
  Line widest;
  for (const Line& line : lines) {
    for (const auto column : {&Line::pair, &Line::methods, &Line::expected, &Line::measured}) {
      if ((line.*column).size() > (widest.*column).size()) widest.*column = line.*column;
    }
  }
  for (const Line& line : lines) {
    std::string measured;
    if (!widest.measured.empty()) measured = fmt::format("{:<{}}  ", line.measured, widest.measured.size());
    write_output(fmt::format("{:<{}}  {:<{}}  {:<{}}  {}{}\n", line.pair, widest.pair.size(), line.methods,
                             widest.methods.size(), line.expected, widest.expected.size(), measured, line.carriers));
  }
}

void print_json(Rank target, const PeerReport& row) {
  Json json{{"target", to_int(target)},
            {"source", to_int(row.rank)},
            {"path", row.path},
            {"carrier", row.device},
            {"bytes", row.bytes},
            {"predicted_seconds", row.predicted_seconds},
            {"fallback_reason", to_string(row.fallback_reason)},
            {"why_not", row.fallback_detail}};
  if (row.measured_seconds > 0) json["measured_seconds"] = row.measured_seconds;
  write_output(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

// All ranks move at once and share links and processors; the expectation assumes exclusive use.
constexpr double far_below = 4;
constexpr double ignored_excess_seconds = 1e-3;  // a short disturbance by other processes

// How the bytes of a target rank moved in the second restore.
struct MeasuredTarget {
  Rank target{};
  ByteCount bytes = 0;
  double seconds = 0;
  double expected_seconds = 0;
  std::string carriers{};
  std::string longest{};  // of its sources

  [[nodiscard]] bool is_slow() const {
    return seconds > far_below * expected_seconds && seconds > expected_seconds + ignored_excess_seconds;
  }
  [[nodiscard]] std::string says() const {
    return fmt::format("took {}, {} were expected, by {}; longest: {}; `perf --pairs` measures each pair alone",
                       human_seconds(seconds), human_seconds(expected_seconds), carriers, longest);
  }
};

std::vector<MeasuredTarget> measured_targets(const std::vector<MemberResult>& results) {
  std::vector<MeasuredTarget> targets;
  for (const MemberResult& result : results) {
    MeasuredTarget one{.target = *result.target, .seconds = result.report.seconds.move};
    for (const PeerReport& peer : result.report.peers) {
      one.bytes += peer.bytes;
      one.expected_seconds += peer.predicted_seconds;
      const std::string carrier = fmt::format("{} ({})", peer.path, peer.device);
      if (one.carriers.find(carrier) == std::string::npos) one.carriers += (one.carriers.empty() ? "" : ", ") + carrier;
    }
    const auto longest = std::ranges::max_element(result.report.peers, {}, &PeerReport::measured_seconds);
    if (longest != result.report.peers.end()) {
      one.longest = fmt::format("source rank {} by {}, {}", to_int(longest->rank), longest->path,
                                human_seconds(longest->measured_seconds));
    }
    targets.push_back(std::move(one));
  }
  return targets;
}

void print_json(const MeasuredTarget& one) {
  const auto speed = [&](double seconds) { return seconds > 0 ? static_cast<double>(one.bytes) / seconds : 0; };
  Json json{{"target", to_int(one.target)},
            {"bytes", one.bytes},
            {"seconds", one.seconds},
            {"bytes_per_second", speed(one.seconds)},
            {"expected_seconds", one.expected_seconds},
            {"expected_bytes_per_second", speed(one.expected_seconds)}};
  if (one.is_slow()) {
    json["flag"] = "slow path";
    json["subject"] = fmt::format("target {}", to_int(one.target));
    json["says"] = one.says();
  }
  write_output(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void print(const std::vector<MeasuredTarget>& targets) {
  const auto both = [](ByteCount bytes, double seconds) {
    return fmt::format("{}, {}", human_seconds(seconds), human_speed(bytes, seconds));
  };
  write_output("\ntarget       bytes              measured              expected\n");
  std::string slow;
  for (const MeasuredTarget& one : targets) {
    write_output(fmt::format("{:>6}{:>12}{:>22}{:>22}\n", to_int(one.target), human_bytes(one.bytes),
                             both(one.bytes, one.seconds), both(one.bytes, one.expected_seconds)));
    if (one.is_slow()) slow += fmt::format("  slow path     target {} {}\n", to_int(one.target), one.says());
  }
  if (slow.empty()) {
    write_output(fmt::format("\nmeasured: no rank took more than {} times as long as expected\n", far_below));
  } else {
    write_output("\nmeasured: to be looked at\n" + slow);
  }
}

std::string header(const Case& job, const std::vector<MemberResult>& targets, bool measure) {
  ByteCount needed = 0;
  std::string transport;
  for (const MemberResult& target : targets) {
    needed += target.report.needed_bytes;
    if (transport.empty()) transport = target.report.transport;
  }
  const auto measured = environment("SHARDWIRE_CALIBRATION");
  return fmt::format(
      "{}: {} source ranks -> {} target ranks, {}, {}; open: {}\n"
      "target <- source rank, path and bytes, expected time and speed with the machine to themselves, {}carrier\n"
      "(expected by {})\n",
      job.name.empty() ? "case" : job.name, job.source.ranks, job.target.ranks, human_bytes(needed),
      measure ? "moved twice" : "none of it moved", transport, measure ? "measured ones, " : "",
      measured ? *measured : "built-in costs, which know no network: measured ones come from `perf --calibrate`");
}

// Maximum bytes of a rank, read from it and read by it, with each rank of both sides in one process.
ByteCount max_bytes_of_a_rank(const Case& job) {
  ByteCount most = 0;
  for (std::int32_t rank = 0; rank < std::max(job.source.ranks, job.target.ranks); ++rank) {
    ByteCount bytes = 0;
    for (const CaseSide* side : {&job.source, &job.target}) {
      if (rank < side->ranks) bytes = support::add(bytes, arena_bytes(*side, Rank{rank}), "the memory of a rank");
    }
    most = std::max(most, bytes);
  }
  return most;
}

// Whether all is as expected.
bool print_unmet(const Expectation& expected, const std::vector<MemberResult>& results, bool json) {
  const std::vector<perf::Flag> flags = unmet(expected, results);
  print_flags(flags, json, "not as expected");
  if (flags.empty() && !json) write_output("\nevery path between ranks is as expected\n");
  return flags.empty();
}

// `results`: of the target ranks, ascending.
void print(const Case& job, const std::vector<MemberResult>& results, const std::vector<perf::Flag>& link_flags,
           const DoctorOptions& options) {
  const bool json = options.json;
  std::vector<Line> lines;
  for (const MemberResult& result : results) {
    const Rows& rows = result.report.peers;  // ascending by rank
    for (auto first = rows.begin(); first != rows.end();) {
      const auto last = std::find_if(first, rows.end(), [&](const PeerReport& row) { return row.rank != first->rank; });
      if (json) {
        std::for_each(first, last, [&](const PeerReport& row) { print_json(*result.target, row); });
      } else {
        lines.push_back(line_of(*result.target, {first, last}));
      }
      first = last;
    }
  }
  if (!json && !lines.empty()) {
    write_output(header(job, results, options.measure));
    print(lines);
  }
  std::vector<perf::Flag> flags = perf::find_flags(transport::pinnable_bytes(), max_bytes_of_a_rank(job));
  flags.insert(flags.end(), link_flags.begin(), link_flags.end());
  print_flags(flags, json);
  if (!options.measure) return;
  print_port_shares(port_shares(results), json);
  const std::vector<MeasuredTarget> targets = measured_targets(results);
  if (json) {
    for (const MeasuredTarget& one : targets) print_json(one);
  } else {
    print(targets);
  }
}

RunOptions run_options(const DoctorOptions& words) {
  require_key_file();
  RunOptions options;
  options.bind_only = !words.measure;
  options.finds_links = true;
  if (words.measure) options.repeat = 2;  // the first also makes mappings and connections
  options.transport = chosen_transport(words.transport);
  options.replicas = words.replicas;
  options.staging_bytes = chosen_staging({});
  options.costs = chosen_costs({});
  options.timeout = std::chrono::seconds(60);
  options.log = chosen_log();
  options.join_timeout = chosen_join_timeout();
  return options;
}

}  // namespace

// Untouched arenas take no memory, so memory is checked first only if bytes are moved, as in `run`.
int examine_case(const std::string& path, const DoctorOptions& words) {
  const RunOptions options = run_options(words);
  Case job;
  JobOutcome outcome = run_job(job, options, [&](bool launched) {
    job = load_case(path);
    if (words.measure && !launched) require_memory(job, options);
  });
  if (outcome.interrupted) return exit_interrupted;
  const JobReport report(job, options, outcome);
  report.print_errors();
  if (!outcome.reports) return report.verified() ? exit_done : exit_failed;
  const std::vector<perf::Flag> flags = flag_links(outcome.results);
  std::vector<MemberResult>& targets = outcome.results;
  std::erase_if(targets, [](const MemberResult& result) { return !result.target; });
  std::ranges::sort(targets, {}, &MemberResult::target);
  print(job, targets, flags, words);
  if (!report.verified()) return exit_failed;
  return !words.expected || print_unmet(*words.expected, targets, words.json) ? exit_done : exit_failed;
}

}  // namespace shardwire::cli
