// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>

#include "case/case.hpp"
#include "cli/command.hpp"
#include "cli/plan_print.hpp"
#include "cli/plan_walk.hpp"

namespace shardwire::cli {
namespace {

struct Options {
  std::string path;
  std::int64_t rank = -1;
  CLI::Option* rank_option = nullptr;
  bool json = false;
  bool totals = false;
  std::vector<std::pair<const char*, CLI::Option*>> later;  // refused when given
  std::string later_text;
};

int run(const Options& options) {
  for (const auto& [name, option] : options.later) {
    if (option->count() > 0) throw UsageError(fmt::format("{} is not supported yet", name));
  }
  const Case job = load_case(options.path);
  const bool one_rank = options.rank_option->count() > 0;
  std::vector<Rank> targets;
  if (one_rank) {
    if (options.rank < 0 || options.rank >= job.target.ranks) {
      throw UsageError(fmt::format("--rank {}: the target has ranks 0 to {}", options.rank, job.target.ranks - 1));
    }
    targets.push_back(Rank{static_cast<std::int32_t>(options.rank)});
  } else {
    for (std::int32_t rank = 0; rank < job.target.ranks; ++rank) targets.push_back(Rank{rank});
  }

  PlanWalk walk(job.source.layout, job.target.layout);
  // Nothing is printed before all regions are known to have a holder.
  if (const std::vector<Gap> gaps = walk.gaps(targets); !gaps.empty()) {
    print_gaps(gaps);
    return exit_failed;
  }
  JsonPieces pieces;
  const bool print_pieces = options.json && !options.totals;
  if (options.json) pieces.begin(print_pieces);
  const PlanTotals totals = walk.totals(targets, print_pieces ? [&](const Transfer& transfer) { pieces.add(transfer); }
                                                              : std::function<void(const Transfer&)>());
  if (options.json) {
    pieces.end(totals, one_rank);
  } else {
    print_table(job, totals, one_rank, options.totals);
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
  options->later = {
      {"--relabel", app.add_flag_function(
                        "--relabel", [](std::int64_t) {}, "the best assignment (not supported yet)")},
      {"--svg", app.add_option("--svg", options->later_text, "draw a tensor's pieces (not supported yet)")},
      {"--tensor", app.add_option("--tensor", options->later_text, "the tensor that --svg draws (not supported yet)")},
      {"--fabric", app.add_option("--fabric", options->later_text, "predict times on a fabric (not supported yet)")},
  };
  return [options] { return run(*options); };
}

}  // namespace shardwire::cli
