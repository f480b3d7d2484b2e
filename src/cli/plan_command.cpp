// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>

#include "case/case.hpp"
#include "case/fabric_file.hpp"
#include "cli/command.hpp"
#include "cli/picture.hpp"
#include "cli/plan_fabric.hpp"
#include "cli/plan_print.hpp"
#include "cli/plan_svg.hpp"
#include "cli/plan_walk.hpp"
#include "cli/relabel.hpp"
#include "cli/run_report.hpp"
#include "shardwire/error.hpp"

namespace shardwire::cli {
namespace {

// Beyond so many ranks the best assignment is worked out only on request.
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

  [[nodiscard]] bool one_rank() const { return rank_option->count() > 0; }
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
  if (options.one_rank()) return false;
  return options.relabel || std::max(job.source.ranks, job.target.ranks) <= ranks_relabelled_unasked;
}

// Nothing when there are gaps; they are then printed.
std::optional<JobTotals> totals_of(const Options& options, PlanWalk& walk, const std::vector<Rank>& targets) {
  if (options.one_rank()) {
    if (const std::vector<Gap> gaps = walk.gaps(targets.front()); !gaps.empty()) {
      print_gaps(gaps);
      return std::nullopt;
    }
    return walk.totals(targets.front());
  }
  try {
    return walk.planner().totals();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) throw CaseError(fmt::format("{}: {}", options.path, error.what()));
    if (error.gaps().empty()) throw;
    print_gaps(error.gaps());
    return std::nullopt;
  }
}

// Nothing where nobody asked for it and there is nothing to gain, or more than the assignment can count.
std::optional<Relabelling> relabelling_of(const Options& options, const Case& job, PlanWalk& walk,
                                          const JobTotals& totals) {
  constexpr ByteCount most_bytes = ByteCount{1} << 62U;
  if (!wants_relabelling(options, job) || (!options.relabel && totals.needed >= most_bytes)) return std::nullopt;
  return relabel(job, walk.planner().holdings(), totals.needed);
}

FabricForecast predict_job(const Case& job, const Fabric& fabric, const JobTotals& totals,
                           const std::vector<std::int32_t>& processes) {
  if (processes.empty()) return forecast(job, fabric, totals.flows, {});
  // Which replica is near depends on where the readers are.
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
  std::optional<Fabric> fabric;
  if (!options.fabric.empty()) fabric = load_fabric(options.fabric);
  const std::vector<Rank> targets = targets_of(options, job);
  std::optional<TensorKey> drawn;
  if (!options.tensor.empty()) drawn = find_tensor(job, options.tensor);

  PlanWalk walk(job.source.layout, job.target.layout, topology_of(job));
  // Nothing is printed before all regions are known to have a holder.
  const std::optional<JobTotals> totals = totals_of(options, walk, targets);
  if (!totals) return exit_failed;
  const std::optional<Relabelling> relabelling = relabelling_of(options, job, walk, *totals);
  std::vector<std::int32_t> processes;  // empty: target rank i is in process i
  if (options.relabel && relabelling) {
    processes = processes_of(relabelling->labels, std::max(job.source.ranks, job.target.ranks));
  }
  std::optional<FabricForecast> predicted;
  if (fabric) predicted = predict_job(job, *fabric, *totals, processes);
  if (drawn) write_file(options.svg, draw_svg(picture_of(job, *drawn, processes)));

  JsonPieces pieces;
  const bool print_pieces = options.json && !options.totals;
  if (options.json) pieces.begin(print_pieces);
  if (print_pieces) walk.pieces(targets, [&](const Transfer& transfer) { pieces.add(transfer); });
  if (options.json) {
    pieces.end(*totals, options.one_rank(), relabelling,
               predicted ? ",\n\"fabric\":" + forecast_json(*predicted) : std::string());
  } else {
    TableOptions table{std::nullopt, options.totals, options.relabel};
    if (options.one_rank()) table.rank = targets.front();
    print_table(job, *totals, relabelling, table);
    if (predicted) print_forecast(*predicted);
  }
  finish_output();
  return exit_done;
}

}  // namespace

std::function<int()> declare_plan(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("CASE", options->path, "case file, or - for standard input")->required();
  options->rank_option = app.add_option("--rank", options->rank, "only what this target rank needs");
  app.add_flag("--json", options->json, "print JSON instead of a table");
  app.add_flag("--totals", options->totals, "leave out single pieces and flows");
  app.add_flag("--relabel", options->relabel,
               "show in which process each target rank should run so that the fewest bytes cross (unasked up to 4096 "
               "ranks in --json); --fabric then predicts that");
  app.add_option(
      "--fabric", options->fabric,
      "predict the time on a fabric: a JSON file with latency_microseconds and gigabytes_per_second of \"copy\" "
      "(inside a process), \"host\" (between processes of a host) and \"network\" (with \"links\" per host); "
      "src/case/README.md describes it. Ranks per host are \"hosts\" of the case; without it every rank is a "
      "host of its own");
  app.add_option(
      "--svg", options->svg,
      "draw the tensor of --tensor to this file: who holds what, who wants it from whom, and the bytes of each "
      "link");
  app.add_option("--tensor", options->tensor, "FQN[:state] of the tensor that --svg draws (default: its first state)");
  return [options] { return run(*options); };
}

}  // namespace shardwire::cli
