// SPDX-License-Identifier: Apache-2.0
// The published cases in one table: what a job has to move, how well it can be laid out, what planning it costs.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <numeric>

#include "case/case.hpp"
#include "perf/control_traffic.hpp"
#include "perf/link_bound.hpp"
#include "perf/measure/row.hpp"
#include "perf/program.hpp"
#include "shardwire/relabel.hpp"

namespace shardwire::perf {
namespace {

using Json = nlohmann::ordered_json;

struct Line {
  std::string name;
  ByteCount state = 0;   // each tensor once
  ByteCount needed = 0;  // by all target ranks, replicas each
  ByteCount remote = 0;
  ByteCount relabelled = 0;
  double pieces = 0;  // mean over ranks that want something
  double runs = 0;
  double link_ratio = 1;
  double rank_seconds = 0;
  double job_seconds = 0;
  std::uint64_t control = 0;  // most of any rank
};

// Planning is one thread's work: what the processor spent on it.
template <typename Work>
double cpu_seconds(int repeats, Work work) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    timespec began{};
    timespec ended{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &began);
    work();
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
    seconds.push_back(static_cast<double>(ended.tv_sec - began.tv_sec) +
                      1e-9 * static_cast<double>(ended.tv_nsec - began.tv_nsec));
  }
  return spread_of(std::move(seconds)).median;
}

ByteCount state_of(const JobLayout& side) {
  ByteCount bytes = 0;
  for (const Section& section : side.sections) {  // no tensor is in two stages
    for (const TensorLayout& tensor : section.manifest->tensors) {
      bytes += static_cast<ByteCount>(volume_of(tensor.spec.shape)) * item_size(tensor.spec.dtype);
    }
  }
  return bytes;
}

Line line_of(const Case& job, int repeats) {
  const JobLayout& from = job.source.layout;
  const JobLayout& to = job.target.layout;
  Line line;
  line.name = job.name;
  line.state = state_of(to);

  Planner planner(from, to);
  const JobTotals totals = planner.totals();
  line.needed = totals.needed;
  line.remote = totals.remote;
  const auto wanting = static_cast<double>(std::count_if(totals.targets.begin(), totals.targets.end(),
                                                         [](const auto& target) { return target.pieces > 0; }));
  line.pieces = static_cast<double>(totals.pieces) / wanting;
  line.runs = static_cast<double>(totals.runs) / wanting;
  const double bound = link_bound(planner);
  const auto load = static_cast<double>(std::max(totals.max_egress, totals.max_ingress));
  line.link_ratio = bound == 0 ? 1 : load / bound;

  const std::vector<Flow> holdings = planner.holdings();
  const std::vector<std::int32_t> labels = best_assignment(from.ranks, to.ranks, holdings);
  line.relabelled = totals.needed;
  for (const Flow& flow : holdings) {
    if (labels[static_cast<std::size_t>(to_int(flow.target))] == to_int(flow.source)) line.relabelled -= flow.bytes;
  }

  line.rank_seconds = cpu_seconds(repeats, [&] {
    Planner one(from, to);
    static_cast<void>(one.schedule(one.plan(Rank{to.ranks / 2})));
  });
  line.job_seconds = cpu_seconds(repeats, [&] { static_cast<void>(Planner(from, to).totals()); });
  const ControlTraffic traffic = control_traffic(from, to.ranks, {"", false, false, std::chrono::seconds(10)});
  line.control = *std::max_element(traffic.total.begin(), traffic.total.end());
  return line;
}

std::string count(double value) {
  if (value < 10'000) return fmt::format("{:.0f}", value);
  return value < 10'000'000 ? fmt::format("{:.0f} k", value / 1e3) : fmt::format("{:.0f} M", value / 1e6);
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.{}f}", 1e3 * seconds, seconds < 0.01 ? 2 : 1);
}

void print_markdown(const Line& line) {
  const auto percent = [&](ByteCount bytes) {
    return 100 * static_cast<double>(bytes) / static_cast<double>(line.state);
  };
  fmt::print("| {} | {:.1f} | {:.2f} | {:.2f} | {} | {} | {:.3f} | {} | {} | {:.1f} |\n", line.name,
             static_cast<double>(line.needed) / 1e9, percent(line.remote), percent(line.relabelled), count(line.pieces),
             count(line.runs), line.link_ratio, milliseconds(line.rank_seconds), milliseconds(line.job_seconds),
             static_cast<double>(line.control) / 1e3);
  std::fflush(stdout);
}

Json row_of(const Line& line, const std::string& given) {
  return {{"name", "table " + line.name},
          {"commit", commit(given)},
          {"machine", machine()},
          {"versions", versions()},
          {"state_bytes", line.state},
          {"needed_bytes", line.needed},
          {"remote_bytes", line.remote},
          {"relabelled_remote_bytes", line.relabelled},
          {"pieces_per_rank", line.pieces},
          {"runs_per_rank", line.runs},
          {"link_load_over_bound", line.link_ratio},
          {"rank_plan_seconds", line.rank_seconds},
          {"job_totals_seconds", line.job_seconds},
          {"control_bytes_per_rank", line.control}};
}

}  // namespace
}  // namespace shardwire::perf

int main(int argc, char** argv) {
  using namespace shardwire;
  std::vector<std::string> cases;
  std::string commit;
  bool markdown = false;
  int repeats = 5;
  perf::Program program("perf_table",
                        "One line per case: bytes, best assignment, pieces, link loads, planning time, control bytes.",
                        commit);
  CLI::App& app = program.options();
  app.add_option("CASE", cases, "case files")->required();
  app.add_flag("--markdown", markdown, "a Markdown table instead of JSON rows");
  app.add_option("--repeats", repeats, "timed repeats")->check(CLI::Range(1, 1000));
  return program.run(argc, argv, [&] {
    if (markdown) {
      fmt::print("{}, commit {}\n\n", perf::machine(), perf::commit(commit));
      fmt::print(
          "| case | needed GB | remote % | relabelled % | pieces | runs | link / bound | rank ms | job ms | control kB "
          "|\n"
          "|---|---|---|---|---|---|---|---|---|---|\n");
    }
    for (const std::string& path : cases) {
      const perf::Line line = perf::line_of(load_case(path), repeats);
      if (markdown) {
        perf::print_markdown(line);
      } else {
        perf::print_row(perf::row_of(line, commit));
      }
    }
    return 0;
  });
}
