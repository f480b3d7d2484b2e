// SPDX-License-Identifier: Apache-2.0
// Measures a restore beside what bounds it on the same machine in the same run: plain copies, or tagged messages over TCP.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <new>

#include "perf/member.hpp"
#include "perf/row.hpp"

namespace {

using namespace shardwire;
using namespace shardwire::perf;

struct Options {
  std::string case_path;
  std::string target;
  std::string commit;
  bool tcp = false;
  int repeats = 5;
  int deadline_s = 300;
};

struct Run {
  Comparison comparison;
  std::shared_ptr<void> pages;  // owners: the board below and, as a mapping, every child
  Board* board;
};

void require(bool holds, const char* what) {
  if (!holds) throw CLI::ValidationError(what);
}

void check(const Comparison& comparison) {
  const Case& job = comparison.job;
  require(comparison.members() <= most_members, "the case has too many ranks for one machine");
  require(!job.target.layout.sections.empty(), "the case has no tensor to move");
  if (!comparison.tcp) return;
  // The plain loop has one sender for each receiver, which gets all that the sender holds.
  bool pairs = job.source.ranks == job.target.ranks;
  for (const TensorLayout& tensor : job.source.layout.sections.at(0).manifest->tensors) {
    for (int rank = 0; pairs && rank < job.source.ranks; ++rank) {
      const auto& wanted = job.target.layout.sections.at(0).manifest->tensors;
      const auto match =
          std::find_if(wanted.begin(), wanted.end(), [&](const auto& t) { return t.spec == tensor.spec; });
      pairs = match != wanted.end() && tensor.layout.boxes_of(tensor.spec.shape, Rank{rank}) ==
                                           match->layout.boxes_of(tensor.spec.shape, Rank{rank});
    }
  }
  require(pairs, "with --tcp, each target rank of the case must want what one source rank holds");
}

Run measure(const Options& options) {
  Run run{
      {load_case(options.case_path), options.tcp, options.repeats, free_port()}, shared_pages(sizeof(Board)), nullptr};
  check(run.comparison);
  run.board = new (run.pages.get()) Board;
  run.board->barrier.open(run.comparison.members());
  run_processes(run.comparison.members(), std::chrono::seconds(options.deadline_s),
                [&](int member) { run_member(run.comparison, *run.board, member); });
  return run;
}

// From the first target that begins to the last that has everything.
std::vector<double> seconds_of(const Run& run, std::size_t contender) {
  std::vector<double> out;
  const auto members = static_cast<std::size_t>(run.comparison.members());
  for (int repeat = 1; repeat <= run.comparison.repeats; ++repeat) {
    const auto& spans = run.board->spans[contender][static_cast<std::size_t>(repeat)];
    Span all{std::numeric_limits<std::int64_t>::max(), 0};
    for (std::size_t member = 0; member < members; ++member) {
      if (run.board->facts[member].needed == 0) continue;
      all.begin_ns = std::min(all.begin_ns, spans[member].begin_ns);
      all.end_ns = std::max(all.end_ns, spans[member].end_ns);
    }
    out.push_back(static_cast<double>(all.end_ns - all.begin_ns) * 1e-9);
  }
  return out;
}

nlohmann::ordered_json stages_of(const Run& run) {
  nlohmann::ordered_json out;
  for (std::size_t stage = 0; stage < stage_names.size(); ++stage) {
    std::vector<double> seconds;
    for (int repeat = 1; repeat <= run.comparison.repeats; ++repeat) {
      const auto at = static_cast<std::size_t>(repeat);
      const auto& slowest = *std::max_element(
          run.board->facts.begin(), run.board->facts.end(),
          [&](const MemberFacts& a, const MemberFacts& b) { return a.stages[at].wall < b.stages[at].wall; });
      seconds.push_back(slowest.stages[at].seconds[stage]);
    }
    out[stage_names[stage]] = spread_of(seconds).median;
  }
  return out;
}

nlohmann::ordered_json row_of(const Run& run, const Options& options) {
  MemberFacts sum;
  for (const MemberFacts& facts : run.board->facts) {
    sum.needed += facts.needed;
    sum.moved += facts.moved;
    sum.local += facts.local;
    sum.mapped += facts.mapped;
    sum.packed += facts.packed;
    sum.elements += facts.elements;
  }
  const auto names = run.comparison.contenders();
  const Spread restore = spread_of(seconds_of(run, names.size() - 1));
  Spread bound;
  std::string bound_name;
  nlohmann::ordered_json bounds;
  for (std::size_t i = 0; i + 1 < names.size(); ++i) {
    const Spread spread = spread_of(seconds_of(run, i));
    bounds[names[i]] = spread.median;
    if (i == 0 || spread.median < bound.median) {
      bound = spread;
      bound_name = names[i];
    }
  }
  nlohmann::ordered_json row;
  row["name"] = fmt::format("perf_restore{} {}", options.tcp ? " --tcp" : "", run.comparison.job.name);
  if (!options.target.empty()) row["target"] = options.target;
  row["commit"] = commit(options.commit);
  row["machine"] = machine();
  row["versions"] = versions();
  row["versions"]["fabric"] = run.board->fabric.data();
  row["processes"] = run.comparison.members();
  row["repeats"] = run.comparison.repeats;
  row["seconds"] = restore.median;
  row["seconds_min"] = restore.least;
  row["seconds_max"] = restore.most;
  row["bytes"] = sum.needed;
  row["bound"] = bound_name;
  row["bound_seconds"] = bound.median;
  row["bound_seconds_min"] = bound.least;
  row["bound_seconds_max"] = bound.most;
  row["ratio"] = bound.median / restore.median;
  row["bounds"] = bounds;
  row["stages"] = stages_of(run);
  row["ways"] = {{"local", sum.local}, {"mapped", sum.mapped}, {"packed", sum.packed}};
  row["elements"] = sum.elements;
  return row;
}

void print_table(const nlohmann::ordered_json& row) {
  const double bytes = row["bytes"].get<double>();
  const auto line = [&](const std::string& name, double seconds) {
    fmt::print(stderr, "  {:<20} {:>8.4f} s {:>7.2f} GB/s\n", name, seconds, bytes / seconds * 1e-9);
  };
  fmt::print(stderr, "{}: {:.3f} GB, {} processes, {}\n", row["name"].get<std::string>(), bytes * 1e-9,
             row["processes"].get<int>(), row["versions"]["fabric"].get<std::string>());
  line("restore", row["seconds"].get<double>());
  for (const auto& [name, seconds] : row["bounds"].items()) line(name, seconds.get<double>());
  fmt::print(stderr, "  restore runs at {:.2f} of the speed of {}\n", row["ratio"].get<double>(),
             row["bound"].get<std::string>());
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app{"Measures restores beside plain copies, or over TCP beside tagged messages", "perf_restore"};
  app.add_option("case", options.case_path, "Case file, or - for standard input")->required();
  app.add_flag("--tcp", options.tcp, "Over TCP on lo, sources and targets apart, one source for each target");
  app.add_option("--repeats", options.repeats, "Timed repeats; one more warms up")
      ->check(CLI::Range(1, most_repeats - 1));
  app.add_option("--target", options.target, "Name of the target that the row is a measurement of");
  app.add_option("--commit", options.commit, "Commit that is measured; default: the one it was built from");
  app.add_option("--deadline", options.deadline_s, "Seconds after which the run is given up")
      ->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
    const Run done = measure(options);
    const auto row = row_of(done, options);
    fmt::print("{}\n", row.dump());
    print_table(row);
    return 0;
  } catch (const CLI::Success& asked) {  // --help
    return app.exit(asked);
  } catch (const CLI::Error& error) {
    fmt::print(stderr, "perf_restore: {}\n", error.what());
    return 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const CaseError& error) {
    fmt::print(stderr, "perf_restore: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "perf_restore: {}\n", error.what());
    return 1;
  }
}
