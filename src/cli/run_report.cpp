// SPDX-License-Identifier: Apache-2.0
#include "cli/run_report.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/color.hpp"
#include "cli/command.hpp"
#include "cli/text.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

using Json = nlohmann::json;

}  // namespace

JobReport::JobReport(const Case& job, const RunOptions& options, JobOutcome outcome)
    : job_(job), options_(options), errors_(std::move(outcome.errors)) {
  std::vector<MemberResult> results = std::move(outcome.results);
  faults_ = costs_of(outcome.faults, results);
  std::sort(results.begin(), results.end(), [](const auto& a, const auto& b) { return a.member < b.member; });
  bool all_fine = errors_.empty();
  for (MemberResult& result : results) {
    all_fine = all_fine && result.verified && result.errors.empty();
    errors_.insert(errors_.end(), result.errors.begin(), result.errors.end());
    staging_peak_ = std::max(staging_peak_, result.report.staging_peak_bytes);
    registered_bytes_ += result.report.registered_bytes;
    registration_seconds_ = std::max(registration_seconds_, result.report.registration_seconds);
    if (transport_.empty()) transport_ = result.report.transport;
    if (result.target) targets_.push_back(std::move(result));
  }
  std::sort(targets_.begin(), targets_.end(), [](const auto& a, const auto& b) { return a.target < b.target; });
  verified_ = all_fine && targets_.size() == static_cast<std::size_t>(job.target.ranks);
}

ByteCount JobReport::sum(ByteCount RestoreReport::*field) const {
  ByteCount total = 0;
  for (const MemberResult& target : targets_) total += target.report.*field;
  return total;
}

std::vector<double> JobReport::slowest_walls() const {
  std::vector<double> walls;
  for (const MemberResult& target : targets_) {
    if (walls.size() < target.walls.size()) walls.resize(target.walls.size());
    for (std::size_t i = 0; i < target.walls.size(); ++i) walls[i] = std::max(walls[i], target.walls[i]);
  }
  return walls;
}

const MemberResult* JobReport::slowest() const {
  const auto found = std::max_element(targets_.begin(), targets_.end(), [](const auto& a, const auto& b) {
    return a.report.seconds.wall < b.report.seconds.wall;
  });
  return found == targets_.end() ? nullptr : &*found;
}

MethodTable JobReport::methods() const {
  MethodTable all;
  for (const MemberResult& target : targets_) {
    all.each([&](Method method, MethodReport& row) {
      const MethodReport& one = target.report.methods[method];
      row.bytes += one.bytes;
      row.runs += one.runs;
      // Ranks work in parallel: the longest counts.
      row.predicted_seconds = std::max(row.predicted_seconds, one.predicted_seconds);
      row.measured_seconds = std::max(row.measured_seconds, one.measured_seconds);
    });
  }
  return all;
}

Json JobReport::json() const {
  ElementCount elements = 0;
  Json ranks = Json::array();
  for (const MemberResult& target : targets_) {
    const RestoreReport& report = target.report;
    elements += target.elements;
    Json peers = Json::array();
    for (const PeerReport& peer : report.peers) {
      peers.push_back({{"rank", to_int(peer.rank)},
                       {"bytes", peer.bytes},
                       {"path", peer.path},
                       {"predicted", peer.predicted_seconds},
                       {"measured", peer.measured_seconds}});
    }
    ranks.push_back({{"rank", to_int(*target.target)},
                     {"needed", report.needed_bytes},
                     {"moved", report.moved_bytes},
                     {"local", report.local_bytes},
                     {"seconds", to_json(report.seconds)},
                     {"peak_rss", target.peak_rss_bytes},
                     {"peers", std::move(peers)}});
  }
  const MethodTable by_method = methods();
  Json method_bytes = Json::object();
  by_method.each(
      [&](Method method, const MethodReport& row) { method_bytes[std::string(to_string(method))] = row.bytes; });
  double digest_seconds = 0;
  std::uint64_t rounds = 0;
  double rounds_seconds = 0;
  for (const MemberResult& target : targets_) {
    digest_seconds += target.report.digest_seconds;
    rounds = std::max(rounds, target.report.rounds);  // the same on all participants
    rounds_seconds = std::max(rounds_seconds, target.report.rounds_seconds);
  }
  const MemberResult* slow = slowest();
  return {{"verified", verified_},
          {"elements", elements},
          {"bytes",
           {{"needed", sum(&RestoreReport::needed_bytes)},
            {"moved", sum(&RestoreReport::moved_bytes)},
            {"local", sum(&RestoreReport::local_bytes)},
            {"extra", sum(&RestoreReport::overread_bytes)},
            {"again", sum(&RestoreReport::resent_bytes)}}},
          {"seconds", to_json(slow == nullptr ? StageSeconds{} : slow->report.seconds)},
          {"repeats", slowest_walls()},
          {"staging", {{"budget", options_.staging_bytes}, {"peak", staging_peak_}}},
          {"registration", {{"bytes", registered_bytes_}, {"seconds", registration_seconds_}}},
          {"methods", std::move(method_bytes)},
          {"rounds", {{"count", rounds}, {"bytes", sum(&RestoreReport::rounds_bytes)}, {"seconds", rounds_seconds}}},
          {"costs", to_json(by_method)},
          {"digest", {{"seconds", digest_seconds}}},
          {"ranks", std::move(ranks)},
          {"faults", to_json(faults_)}};
}

void JobReport::print_faults() const {
  for (const FaultCost& one : faults_) {
    const std::string name = to_string(one.outcome.fault);
    if (!one.outcome.struck_ns) {
      support::write_stderr("shardwire: --fault {} did not strike: the job was over before (--rate slows it down)\n",
                            name);
      continue;
    }
    std::string noticed = "no reader gave the source up";
    if (one.noticed_seconds) noticed = fmt::format("noticed after {}", human_seconds(*one.noticed_seconds));
    fmt::print("  fault      {:<16}{}; {} boxes planned anew, {} moved again\n", name, noticed, one.boxes_replanned,
               human_bytes(static_cast<double>(one.resent_bytes)));
  }
}

void JobReport::write(std::ostream& out) const {
  std::string text = json().dump(2, ' ', false, Json::error_handler_t::replace);
  text.resize(text.rfind('\n'));  // the closing brace comes last
  out << text << ",\n  \"errors\": [";
  for (const RunError& error : errors_) {
    out << (&error == errors_.data() ? "\n" : ",\n") << "    {\"code\": " << json_text(error.code)
        << ", \"message\": " << json_text(error.message);
    for (const Gap& gap : error.gaps) {
      out << (&gap == error.gaps.data() ? ", \"gaps\": [\n      " : ",\n      ") << json_text(gap);
    }
    out << (error.gaps.empty() ? "}" : "]}");
  }
  out << "]\n}\n";
}

void JobReport::print_paths() const {
  struct Path {
    ByteCount bytes = 0;
    std::size_t links = 0;
    std::vector<std::string> carriers;  // each once
    std::string why_not;
  };
  constexpr std::ptrdiff_t carriers_shown = 4;
  std::map<std::string, Path> paths;
  for (const MemberResult& target : targets_) {
    for (const PeerReport& peer : target.report.peers) {
      Path& path = paths[peer.path];
      path.bytes += peer.bytes;
      ++path.links;
      if (std::ranges::find(path.carriers, peer.device) == path.carriers.end()) path.carriers.push_back(peer.device);
      if (path.why_not.empty()) path.why_not = peer.fallback_detail;
    }
  }
  for (const auto& [name, path] : paths) {
    const auto shown = std::min(carriers_shown, std::ssize(path.carriers));
    std::string carriers = fmt::format("{}", fmt::join(path.carriers.begin(), path.carriers.begin() + shown, "; "));
    if (shown < std::ssize(path.carriers)) carriers += fmt::format("; {} more", std::ssize(path.carriers) - shown);
    fmt::print("  path       {:<16}{:>10} over {} pair{} of ranks: {}{}{}\n", name,
               human_bytes(static_cast<double>(path.bytes)), path.links, path.links == 1 ? "" : "s", carriers,
               path.why_not.empty() ? "" : "; ", path.why_not);
  }
}

void JobReport::print_errors() const {
  constexpr std::size_t errors_shown = 8;
  for (std::size_t i = 0; i < std::min(errors_shown, errors_.size()); ++i) {
    support::write_stderr("{} {}: {}\n", marked("shardwire:", Mark::failure, stderr), errors_[i].code,
                          errors_[i].message);
  }
  if (errors_.size() > errors_shown) {
    support::write_stderr("shardwire: and {} more errors\n", errors_.size() - errors_shown);
  }
}

void JobReport::print() const {
  print_errors();
  const std::string name = job_.name.empty() ? "case" : job_.name;
  ElementCount elements = 0;
  for (const MemberResult& target : targets_) elements += target.elements;
  const ByteCount needed = sum(&RestoreReport::needed_bytes);
  const auto bytes = [](ByteCount count) { return human_bytes(static_cast<double>(count)); };
  const std::string outcome =
      verified_ ? marked("verified", Mark::success, stdout) : marked("NOT VERIFIED", Mark::failure, stdout);
  fmt::print("{}: {}, {} source ranks -> {} target ranks\n", name, outcome, job_.source.ranks, job_.target.ranks);
  if (verified_) {
    fmt::print("  checked    {} elements ({}), every one as it must be\n", elements, bytes(needed));
  } else {
    const auto good =
        std::count_if(targets_.begin(), targets_.end(), [](const auto& target) { return target.verified; });
    fmt::print("  checked    {} elements; {} of {} target ranks are verified\n", elements, good, job_.target.ranks);
  }
  const MemberResult* const slow = slowest();
  if (slow == nullptr || slow->report.seconds.wall <= 0) return print_faults();  // no restore has begun
  fmt::print("  bytes      {} needed = {} between ranks + {} inside a rank", bytes(needed),
             bytes(sum(&RestoreReport::moved_bytes)), bytes(sum(&RestoreReport::local_bytes)));
  if (sum(&RestoreReport::overread_bytes) > 0)
    fmt::print(", {} beyond need", bytes(sum(&RestoreReport::overread_bytes)));
  if (sum(&RestoreReport::resent_bytes) > 0)
    fmt::print(", {} again after faults", bytes(sum(&RestoreReport::resent_bytes)));
  fmt::print("\n");
  const StageSeconds& s = slow->report.seconds;
  fmt::print(
      "  time       {:.3f} s on the slowest rank ({}): join {:.3f}, plan {:.3f}, bind {:.3f}, move {:.3f}, "
      "verify {:.3f}, commit {:.3f}\n",
      s.wall, to_int(*slow->target), s.join, s.plan, s.bind, s.move, s.verify, s.commit);
  fmt::print("  speed      {} over the whole restore, {} while moving\n", human_speed(needed, s.wall),
             human_speed(needed, s.move));
  if (const std::vector<double> walls = slowest_walls(); walls.size() > 1) {
    fmt::print("  repeats   ");
    for (const double wall : walls) fmt::print(" {:.3f}", wall);
    fmt::print(" s; best {}\n", human_speed(needed, *std::min_element(walls.begin(), walls.end())));
  }
  if (!transport_.empty()) fmt::print("  transport  {}\n", transport_);
  print_paths();
  print_faults();
  methods().each([&](Method method, const MethodReport& row) {
    if (row.bytes == 0) return;
    fmt::print("  method     {:<16}{:>10} in {} runs: {:.4f} s predicted, {:.4f} s measured\n", to_string(method),
               bytes(row.bytes), row.runs, row.predicted_seconds, row.measured_seconds);
  });
  if (options_.verify == Verify::digest) {
    double seconds = 0;
    for (const MemberResult& target : targets_) seconds += target.report.digest_seconds;
    fmt::print("  digests    {:.4f} s of processor time on the target ranks\n", seconds);
  }
  if (registered_bytes_ > 0) {
    fmt::print("  arenas     {} allocated in {:.4f} s on the slowest rank\n", bytes(registered_bytes_),
               registration_seconds_);
  }
  fmt::print("  staging    {} at most in use on a rank, {} allowed\n", bytes(staging_peak_),
             bytes(options_.staging_bytes));
}

void require_writable(std::string_view option, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  const bool exists = fs::exists(path, error);
  if (fs::is_directory(path, error)) throw UsageError(fmt::format("{} {}: this is a folder", option, path));
  if (!exists && !fs::is_directory(folder.empty() ? "." : folder, error)) {
    throw UsageError(fmt::format("{} {}: there is no folder {}", option, path, folder.string()));
  }
  const std::string checked = exists ? path : folder.empty() ? "." : folder.string();
  if (::access(checked.c_str(), exists ? W_OK : W_OK | X_OK) != 0) {
    throw UsageError(fmt::format("{} {}: {}", option, path, std::generic_category().message(errno)));
  }
}

void write_report(const std::string& path, const JobReport& report) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  report.write(file);
  file.close();
  if (!file) throw std::runtime_error(fmt::format("the report could not be written to {}", path));
}

}  // namespace shardwire::cli
