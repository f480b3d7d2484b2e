// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>

#include "case/case.hpp"
#include "case/fabric_file.hpp"
#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/job_options.hpp"
#include "cli/picture.hpp"
#include "cli/plan_buddies.hpp"
#include "cli/plan_fabric.hpp"
#include "cli/plan_print.hpp"
#include "cli/plan_svg.hpp"
#include "cli/relabel.hpp"
#include "cli/run_report.hpp"
#include "shardwire/error.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

// Above this number of ranks the best assignment is computed only on request.
constexpr int ranks_relabelled_unasked = 4096;

struct Options {
  std::string path;
  std::int64_t rank = -1;
  CLI::Option* rank_option = nullptr;
  bool json = false;
  bool totals = false;
  bool relabel = false;
  std::string fabric;
  std::string svg;
  std::string tensor;
  int buddies = 0;
  int lost_host = -1;
  CLI::Option* lost_host_option = nullptr;
  std::string replicas = "spread";

  [[nodiscard]] bool one_rank() const { return rank_option->count() > 0; }
  [[nodiscard]] bool loses_host() const { return lost_host_option->count() > 0; }
  [[nodiscard]] bool reads_first() const { return parse_replicas(replicas) == Replicas::first; }
};

void check_before_reading(const Options& options) {
  if (options.one_rank() && !options.fabric.empty()) {
    throw UsageError("--fabric predicts the whole job; leave out --rank");
  }
  if (options.svg.empty() != options.tensor.empty()) {
    throw UsageError("--svg FILE and --tensor FQN[:state] belong together");
  }
  if (options.one_rank() && !options.svg.empty()) throw UsageError("--svg draws all ranks; leave out --rank");
  if (!options.svg.empty()) require_writable("--svg", options.svg);
  if (options.buddies < 0) throw UsageError("--buddies: a number of copies");
  if (options.buddies > 0 && !options.loses_host()) {
    throw UsageError("--buddies needs --lost-host: copies change nothing until a host is lost");
  }
  if (options.loses_host() && (options.relabel || !options.fabric.empty() || !options.svg.empty())) {
    throw UsageError("--lost-host shows who holds what: leave out --relabel, --fabric and --svg");
  }
  if (options.reads_first() && (options.relabel || !options.svg.empty())) {
    throw UsageError("--replicas first: --relabel and --svg assume that replicas are equal; leave them out");
  }
  if (options.path == "-" && options.fabric == "-") {
    throw UsageError("--fabric -: standard input is the case already");
  }
}

std::vector<Rank> targets_of(const Options& options, const Case& job) {
  if (!options.one_rank()) return ranks_of(job.target.layout);
  if (options.rank < 0 || options.rank >= job.target.ranks) {
    throw UsageError(fmt::format("--rank {}: the target has ranks 0 to {}", options.rank, job.target.ranks - 1));
  }
  return {Rank{static_cast<std::int32_t>(options.rank)}};
}

bool wants_relabelling(const Options& options, const Case& job) {
  if (options.one_rank() || options.loses_host() || options.reads_first()) return false;
  return options.relabel || std::max(job.source.ranks, job.target.ranks) <= ranks_relabelled_unasked;
}

// Totals of a plan, apart from its pieces.
struct Sums {
  JobTotals totals;
  TableRows rows;           // for the table
  std::vector<Flow> flows;  // for the fabric
};

Sums sums_of(const Options& options, Planner& planner, const std::vector<Rank>& targets) {
  Sums sums;
  OnTarget on_target;
  if (!options.json || !options.fabric.empty()) {
    on_target = [&](Rank, const TargetTotals& own, std::span<const Flow> flows) {
      sums.rows.add(own, flows);
      if (!options.fabric.empty()) sums.flows.insert(sums.flows.end(), flows.begin(), flows.end());
    };
  }
  try {
    sums.totals = planner.tally(targets, on_target);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) throw CaseError(fmt::format("{}: {}", options.path, error.what()));
    throw;
  }
  return sums;
}

// Printed separately from the list, so that the reader can stop, or make room, before millions of pieces arrive.
void announce_pieces(std::uint64_t pieces) {
  support::write_stderr("shardwire: {} {}\n", pieces, pieces == 1 ? "piece follows" : "pieces follow");
}

// For these target ranks; every one of them wants all one-element tensors.
std::uint64_t count_value_gaps(const Case& job, const std::vector<Rank>& targets, std::span<const Rank> lost) {
  return targets.size() * value_gaps(job, targets.front(), lost).size();
}

void print_gaps(const Options& options, const Case& job, Planner& planner, const std::vector<Rank>& targets,
                std::span<const Rank> lost, std::uint64_t gaps) {
  GapLines lines(gaps, options.json);
  planner.each_gap(targets, [&](const Gap& gap) { lines.add(gap); });
  for (const Rank target : targets) {
    for (const Gap& gap : value_gaps(job, target, lost)) lines.add(gap);
  }
  lines.end();
}

// Empty if it was not requested and gains nothing, or if it exceeds what the assignment can count.
std::optional<Relabelling> relabelling_of(const Options& options, const Case& job, Planner& planner,
                                          const JobTotals& totals) {
  constexpr ByteCount max_bytes = ByteCount{1} << 62U;
  if (!wants_relabelling(options, job) || (!options.relabel && totals.needed >= max_bytes)) return std::nullopt;
  return relabel(job, planner.holdings(), totals.needed);
}

FabricForecast predict_job(const Case& job, const ClusterModel& fabric, const std::vector<Flow>& flows,
                           const std::vector<std::int32_t>& processes) {
  if (processes.empty()) return forecast(job, fabric, flows, {});
  // The nearest replica depends on the location of the readers.
  Planner planner(job.source.layout, job.target.layout, topology_of(job, processes));
  return forecast(job, fabric, planner.totals().flows, processes);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{} could not be written", path));
}

int run(const Options& options) {
  check_before_reading(options);
  const Case job = load_case(options.path);
  std::optional<ClusterModel> fabric;
  if (!options.fabric.empty()) fabric = load_fabric(options.fabric);
  const std::vector<Rank> targets = targets_of(options, job);
  std::optional<TensorKey> drawn;
  if (!options.tensor.empty()) drawn = find_tensor(job, options.tensor);

  LostHost source{.source = job.source.layout, .topology = topology_of(job), .lost = {}, .summary = {}};
  if (options.loses_host()) {
    if (job.ranks_per_host == 0) throw UsageError("--lost-host: the case does not give \"hosts\", the ranks per host");
    source = without_host(job, options.buddies, options.lost_host);
  }
  Planner planner(source.source, job.target.layout, source.topology, parse_replicas(options.replicas));
  // Print only after all regions are known to have a holder.
  const Sums sums = sums_of(options, planner, targets);
  const JobTotals& totals = sums.totals;
  if (const std::uint64_t gaps = totals.gaps + count_value_gaps(job, targets, source.lost); gaps > 0) {
    if (!source.summary.empty()) support::write_stderr("shardwire: {}\n", source.summary);
    print_gaps(options, job, planner, targets, source.lost, gaps);
    return exit_failed;
  }
  const std::optional<Relabelling> relabelling = relabelling_of(options, job, planner, totals);
  std::vector<std::int32_t> processes;  // empty: target rank i is in process i
  if (options.relabel && relabelling) {
    processes = processes_of(relabelling->labels, std::max(job.source.ranks, job.target.ranks));
  }
  std::optional<FabricForecast> predicted;
  if (fabric) predicted = predict_job(job, *fabric, sums.flows, processes);
  if (drawn) write_file(options.svg, draw_svg(picture_of(job, *drawn, processes)));

  if (options.json) {
    const std::string more = predicted ? ",\n\"fabric\":" + forecast_json(*predicted) : std::string();
    JsonPieces pieces;
    pieces.begin(!options.totals);
    if (!options.totals) {
      announce_pieces(totals.pieces);
      planner.each_transfer(targets, [&](const PlannedTransfer& transfer) { pieces.add(transfer); });
    }
    pieces.end(totals, options.one_rank(), relabelling, more);
  } else {
    TableOptions table{std::nullopt, options.totals, options.relabel};
    if (options.one_rank()) table.rank = targets.front();
    if (!source.summary.empty()) fmt::print("{}: every element has a holder\n", source.summary);
    print_table(job, totals, sums.rows, relabelling, table);
    if (predicted) print_forecast(*predicted);
  }
  return exit_done;
}

}  // namespace

std::function<int()> declare_plan(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("CASE", options->path, "case file, or - for standard input")->required();
  options->rank_option = app.add_option("--rank", options->rank, "only the needs of this target rank");
  app.add_flag("--json", options->json, "print JSON instead of a table");
  app.add_flag("--totals", options->totals, "print only the totals, not single pieces and flows");
  app.add_flag("--relabel", options->relabel,
               "show in which process each target rank should run so that the fewest bytes cross (unasked up to 4096 "
               "ranks in --json); --fabric then predicts that");
  app.add_option(
         "--fabric", options->fabric,
         "predict the time on a fabric: a JSON file with latency_microseconds and gigabytes_per_second of \"copy\" "
         "(inside a process), \"host\" (between processes of a host) and \"network\" (with \"links\" per host); "
         "docs/case-format.md describes it. Ranks per host are \"hosts\" of the case; without it every rank is a "
         "host of its own")
      ->type_name(file_type);
  options->lost_host_option =
      app.add_option("--lost-host", options->lost_host,
                     "plan without this host of the source, and say which elements nobody holds then");
  app.add_option("--buddies", options->buddies,
                 "each source rank has so many copies on other hosts (PublishOptions::buddies); with --lost-host");
  add_replicas(app, options->replicas);
  app.add_option("--svg", options->svg,
                 "draw the tensor of --tensor to this file: holders, transfers between ranks, and the bytes of each "
                 "link")
      ->type_name(file_type);
  app.add_option("--tensor", options->tensor, "FQN[:state] of the tensor that --svg draws (default: its first state)");
  return [options] { return run(*options); };
}

}  // namespace shardwire::cli
