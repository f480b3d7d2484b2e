// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/drill_schedule.hpp"
#include "cli/drill_table.hpp"
#include "cli/environment.hpp"
#include "cli/job_options.hpp"
#include "cli/relabel.hpp"
#include "cli/run_job.hpp"
#include "cli/run_memory.hpp"
#include "cli/run_report.hpp"
#include "cli/text.hpp"
#include "support/nearest.hpp"

namespace shardwire::cli {
namespace {

using Json = nlohmann::json;

struct Seeds {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
};

Seeds parse_seeds(const std::string& text) {
  Seeds seeds;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, seeds.first);
  const bool colon = first.ec == std::errc() && first.ptr != end && *first.ptr == ':';
  const auto last = colon ? std::from_chars(first.ptr + 1, end, seeds.end) : first;
  if (!colon || last.ec != std::errc() || last.ptr != end || seeds.first >= seeds.end) {
    throw UsageError(fmt::format("--seeds {}: a:b with a < b is expected, such as 0:1000", text));
  }
  return seeds;
}

std::vector<FaultKind> parse_kinds(const std::string& text, Verify verify) {
  std::vector<FaultKind> kinds;
  for (const FaultKind kind : fault_kinds()) {
    // Without digests only the check of every element would find it.
    if (text.empty() ? kind != FaultKind::corrupt || verify == Verify::digest
                     : ("," + text + ",").find(fmt::format(",{},", to_string(kind))) != std::string::npos) {
      kinds.push_back(kind);
    }
  }
  const auto named = text.empty() ? kinds.size() : static_cast<std::size_t>(std::ranges::count(text, ',')) + 1;
  if (named != kinds.size()) {
    const std::vector<std::string_view> known = names_of_kinds();
    std::string meant;
    std::istringstream words(text);
    for (std::string word; meant.empty() && std::getline(words, word, ',');) {
      if (std::ranges::find(known, word) == known.end()) meant = support::suggestion(word, known);
    }
    throw UsageError(
        fmt::format("--kinds {}: different kinds of faults are expected, joined by commas{}", text, meant));
  }
  return kinds;
}

RunOptions checked(const DrillWords& words) {
  require_key_file();
  RunOptions options;
  JobTransport transport = chosen_job_transport(words.transport, MemoryKind::host);
  require_struck_processes(transport);
  options.transport = std::move(transport.names);
  options.verify = parse_verify(words.verify);
  options.rate_bytes_per_second = parse_rate(words.rate);
  options.timeout = parse_seconds("--timeout", words.timeout_seconds);
  options.notice = parse_seconds("--notice", words.notice_seconds);
  options.join_timeout = chosen_join_timeout();
  options.disjoint = words.disjoint;
  options.shows_progress = false;
  options.log = chosen_log();
  if (!environment("SHARDWIRE_LOG")) options.log.least = LogLevel::error;  // losses are what the drill is about
  return options;
}

// The bytes that each source sends to other processes.
std::map<Rank, ByteCount> sent_bytes(const JobTotals& totals, const RunOptions& options) {
  std::map<Rank, ByteCount> sent;
  for (const Flow& flow : totals.flows) {
    if (options.disjoint || flow.source != flow.target) sent[flow.source] += flow.bytes;
  }
  return sent;
}

std::string methods_of(const JobOutcome& outcome) {
  MethodTable all;
  for (const MemberResult& one : outcome.results) all += one.report.methods;
  std::string names;
  all.each([&](Method method, const MethodReport& row) {
    if (row.bytes == 0 || method == Method::local) return;
    names += (names.empty() ? "" : "+") + std::string(to_string(method));
  });
  return names.empty() ? "-" : names;
}

std::string text_of(const SeedResult& result) {
  std::string faults;
  for (const FaultCost& one : result.costs) {
    faults += (faults.empty() ? "" : ", ") + to_string(one.outcome.fault);
    if (!one.outcome.struck_ns) faults += " (not struck)";
    if (one.noticed_seconds) faults += fmt::format(" (noticed after {})", human_seconds(*one.noticed_seconds));
  }
  return faults;
}

Json json_of(const SeedResult& result, double seconds) {
  return {{"seed", result.seed},
          {"outcome", to_string(result.verdict.kind)},
          {"why", result.verdict.why},
          {"has_holders", result.verdict.has_holders},
          {"methods", result.methods},
          {"seconds", seconds},
          {"faults", to_json(result.costs)}};
}

int drill(const DrillWords& words) {
  RunOptions options = checked(words);
  const Seeds seeds = parse_seeds(words.seeds);
  const std::vector<FaultKind> kinds = parse_kinds(words.kinds, options.verify);
  if (!words.json.empty()) require_writable("--json", words.json);
  Case job = load_case(words.path);
  if (static_cast<int>(job.source.lost.size()) == job.source.ranks)
    throw UsageError("the case has no source rank to strike");
  require_memory(job, options);
  const JobTotals totals = Planner(job.source.layout, job.target.layout, topology_of(job)).totals();
  // Slow enough that every percentage can be hit.
  constexpr ByteCount restores_per_second = 10;
  if (options.rate_bytes_per_second == 0) {
    options.rate_bytes_per_second = std::max<ByteCount>(1, totals.max_ingress * restores_per_second);
  }
  const std::map<Rank, ByteCount> owed = sent_bytes(totals, options);
  std::ofstream rows;
  if (!words.json.empty()) rows.open(words.json, std::ios::trunc);
  DrillTable table;
  for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    options.faults = faults_of_seed(seed, job, kinds);
    const auto began = std::chrono::steady_clock::now();
    const JobOutcome outcome = run_job(job, options, [](bool) {});
    if (outcome.interrupted) return exit_interrupted;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const SeedResult result{seed, judge(job, options, outcome), costs_of(outcome.faults, outcome.results),
                            methods_of(outcome), owed};
    table.add(result);
    const Verdict& verdict = result.verdict;
    fmt::print("seed {}: {}: {} in {:.2f} s{}{}\n", seed, text_of(result), to_string(verdict.kind), seconds,
               verdict.why.empty() ? "" : "; ", verdict.why);
    if (verdict.kind == Verdict::Kind::bug) fmt::print("  again: {}\n", command_of_seed(words, seed));
    std::fflush(stdout);
    if (rows.is_open())
      rows << json_of(result, seconds).dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  table.print();
  if (!words.json.empty() && !rows) throw std::runtime_error(fmt::format("{} could not be written", words.json));
  return table.bugs() == 0 ? exit_done : exit_failed;
}

}  // namespace

std::function<int()> declare_drill(CLI::App& app) {
  const auto words = std::make_shared<DrillWords>();
  app.add_option("CASE", words->path, "case file, or - for standard input; its source should have replicas")
      ->required();
  app.add_option("--seeds", words->seeds,
                 "a:b, one run of the case for each seed from a to b - 1. A seed determines one or two faults: kind, "
                 "source rank, and the moment, an event of the restores (default: 0:20)");
  app.add_option("--transport", words->transport, "names of transports (default: SHARDWIRE_TRANSPORT or auto)")
      ->type_name(some_of(transport_names(Reach::host)));
  app.add_option("--kinds", words->kinds,
                 "only these kinds of faults (default: all, corrupt only with --verify digest); run --help explains "
                 "them")
      ->type_name(some_of(fmt::format("{}", fmt::join(names_of_kinds(), ", "))));
  add_verify(app, words->verify);
  app.add_flag("--disjoint", words->disjoint, "source and target ranks are different processes");
  app.add_option("--rate", words->rate,
                 "most remote bytes into each rank per second (default: a restore takes about 0.1 s)");
  app.add_option("--notice", words->notice_seconds,
                 "seconds of silence after which a source is given up for others (default: 0.5)");
  add_timeout(app, words->timeout_seconds, "seconds that one restore may take (default: 60)");
  app.add_option("--json", words->json, "write a JSON row for each seed to this file")->type_name(file_type);
  return [words] { return drill(*words); };
}

}  // namespace shardwire::cli
