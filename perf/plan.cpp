// SPDX-License-Identifier: Apache-2.0
// How long planning takes, beside a planner that compares every wanted box with every held one, and what the published
// cases cost. README.md says how to read it.
#include <fmt/format.h>

#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <functional>

#include "case/case.hpp"
#include "perf/all_pairs.hpp"
#include "perf/link_bound.hpp"
#include "perf/measure/row.hpp"
#include "perf/program.hpp"
#include "shardwire/plan.hpp"
#include "shardwire/relabel.hpp"

namespace shardwire::perf {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> cases;
  std::string target;
  std::string measure = "job";
  int rank = -1;
  int repeats = 7;
  std::string commit;
};

struct Times {
  std::vector<double> wall;
  std::vector<double> cpu;
};

double now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Planning is one thread's work without a wait: where the two differ, the machine was busy with something else.
void time_of(const std::function<void()>& work, Times& times) {
  const double wall = now(CLOCK_MONOTONIC);
  const double cpu = now(CLOCK_THREAD_CPUTIME_ID);
  work();
  times.cpu.push_back(now(CLOCK_THREAD_CPUTIME_ID) - cpu);
  times.wall.push_back(now(CLOCK_MONOTONIC) - wall);
}

// Other data takes the place of whatever the last repeat left in the caches.
void cool_caches() {
  static std::vector<std::uint64_t> other(std::size_t{16} << 20);  // 128 MiB
  for (std::size_t i = 0; i < other.size(); i += 8) other[i] += i;
}

Json spread_fields(const char* name, const Spread& spread) {
  const std::string key(name);
  return {{key, spread.median}, {key + "_min", spread.least}, {key + "_max", spread.most}};
}

// A rank in the middle: the first and the last ones often have less to do.
Rank measured_rank(const Options& options, const JobLayout& to) {
  return Rank{options.rank >= 0 ? options.rank : to.ranks / 2};
}

Json measure(const Options& options, const Case& job) {
  const JobLayout& from = job.source.layout;
  const JobLayout& to = job.target.layout;
  const Rank rank = measured_rank(options, to);
  Times ours;
  Times theirs;
  AllPairsTotals slow;
  ByteCount needed = 0;
  std::size_t pieces = 0;
  std::size_t heap = 0;
  for (int repeat = 0; repeat <= options.repeats; ++repeat) {  // one more, which warms up
    JobLayout from_copy = from;
    JobLayout to_copy = to;
    cool_caches();
    const std::size_t before = ::mallinfo2().uordblks;
    const auto plan_it = [&] {
      Planner planner(std::move(from_copy), std::move(to_copy));
      if (options.measure == "job") {
        const JobTotals totals = planner.totals();
        needed = totals.needed;
        pieces = totals.pieces;
      } else {
        const Plan plan = planner.plan(rank);
        Schedule schedule;
        if (options.measure == "schedule") schedule = planner.schedule(plan);
        pieces = options.measure == "schedule" ? schedule.items.size() : plan.pieces.size();
        heap = ::mallinfo2().uordblks - before;
      }
    };
    Times warm_up;
    time_of(plan_it, repeat == 0 ? warm_up : ours);
    const bool whole = options.measure == "job";
    // Whole jobs take it seconds, so that two repeats have to do.
    if (repeat >= (whole ? 3 : options.repeats + 1)) continue;
    cool_caches();
    time_of([&] { slow = whole ? all_pairs(from, to) : all_pairs(from, to, rank); }, repeat == 0 ? warm_up : theirs);
  }
  if (options.measure == "job" && needed != slow.bytes) {
    throw std::runtime_error(fmt::format("{}: {} bytes planned, all pairs find {}", job.name, needed, slow.bytes));
  }
  const Spread fast = spread_of(ours.wall);
  const Spread pairs = spread_of(theirs.wall);
  Json row{{"name", "plan-" + options.measure + " " + job.name},
           {"target", options.target},
           {"commit", commit(options.commit)},
           {"machine", machine()},
           {"versions", versions()},
           {"repeats", options.repeats}};
  row.update(spread_fields("seconds", fast));
  row["bound"] = "all pairs";
  row.update(spread_fields("bound_seconds", pairs));
  row["ratio"] = pairs.median / fast.median;
  row["cpu_seconds"] = {{"measured", spread_of(ours.cpu).median}, {"bound", spread_of(theirs.cpu).median}};
  row["pieces"] = pieces;
  row["tensors"] = job.tensor_states;
  if (options.measure != "job") {
    row["rank"] = to_int(rank);
    row["heap_bytes"] = heap;
  }
  return row;
}

// Link loads when every rank follows its schedule, over the least that any choice of sources could reach.
Json balance(const Options& options, const Case& job) {
  Planner planner(job.source.layout, job.target.layout);
  const JobTotals totals = planner.totals();
  const double bound = link_bound(planner);
  const auto load = static_cast<double>(std::max(totals.max_egress, totals.max_ingress));
  return {{"name", "links " + job.name},
          {"target", options.target},
          {"commit", commit(options.commit)},
          {"max_egress", totals.max_egress},
          {"max_ingress", totals.max_ingress},
          {"bound_bytes", bound},
          {"ratio", bound == 0 ? 1.0 : load / bound},
          {"pieces", totals.pieces}};
}

// The best assignment of target ranks to processes, from what ranks hold.
Json relabel(const Options& options, const Case& job) {
  Planner planner(job.source.layout, job.target.layout);
  const ByteCount needed = planner.totals().needed;
  const std::vector<Flow> holdings = planner.holdings();
  std::vector<std::int32_t> labels;
  Times times;
  for (int repeat = 0; repeat <= options.repeats; ++repeat) {
    cool_caches();
    Times warm_up;
    const auto assign = [&] {
      labels = best_assignment(job.source.ranks, job.target.ranks, holdings, job.source.lost);
    };
    time_of(assign, repeat == 0 ? warm_up : times);
  }
  ByteCount remote = needed;
  for (const Flow& flow : holdings) {
    if (labels[static_cast<std::size_t>(to_int(flow.target))] == to_int(flow.source)) remote -= flow.bytes;
  }
  Json row{{"name", "relabel " + job.name}, {"target", options.target}, {"commit", commit(options.commit)},
           {"machine", machine()},          {"versions", versions()},   {"repeats", options.repeats}};
  row.update(spread_fields("seconds", spread_of(times.wall)));
  row["pairs"] = holdings.size();
  row["relabelled_remote"] = remote;
  row["relabelled_percent"] = needed == 0 ? 0.0 : 100 * static_cast<double>(remote) / static_cast<double>(needed);
  return row;
}

Json row_of(const Options& options, const Case& job) {
  if (options.measure == "links") return balance(options, job);
  if (options.measure == "relabel") return relabel(options, job);
  return measure(options, job);
}

}  // namespace
}  // namespace shardwire::perf

int main(int argc, char** argv) {
  using namespace shardwire;
  perf::Options options;
  perf::Program program(
      "perf_plan",
      "Planning time against an all-pairs planner, and link loads against their bound; one JSON row per case.",
      options.commit);
  CLI::App& app = program.options();
  app.add_option("CASE", options.cases, "case files")->required();
  app.add_option("--measure", options.measure,
                 "job: totals of all ranks; rank: one rank's plan; schedule: and its schedule; links; relabel")
      ->check(CLI::IsMember({"job", "rank", "schedule", "links", "relabel"}));
  app.add_option("--rank", options.rank, "the rank that is planned (default: the middle one)");
  app.add_option("--target", options.target, "name of the measurement, kept in its rows");
  app.add_option("--repeats", options.repeats, "timed repeats")->check(CLI::Range(1, 1000));
  return program.run(argc, argv, [&] {
    for (const std::string& path : options.cases) perf::print_row(perf::row_of(options, load_case(path)));
    return 0;
  });
}
