// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>

#include "cli/command.hpp"
#include "cli/job_options.hpp"
#include "cli/perf_options.hpp"
#include "cli/run_report.hpp"
#include "cli/text.hpp"
#include "perf/measure/costs_fit.hpp"
#include "perf/measure/row.hpp"
#include "perf/measure/synthetic.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

constexpr int ranks = 2;
constexpr ByteCount default_bytes = 32u << 20;
// A way that sends each run by itself takes its time over many of them.
constexpr ByteCount max_runs = 16384;
constexpr Way remote_ways[] = {Way::mapped, Way::read, Way::over_read, Way::straight, Way::packed};

void refuse_others(const PerfWords& words) {
  const auto refuse = [](const char* option) {
    throw UsageError(fmt::format("--calibrate measures over shared memory and over TCP; it takes no {}", option));
  };
  if (!words.path.empty()) refuse("CASE");
  if (words.tcp) refuse("--tcp");
  if (words.disjoint) refuse("--disjoint");
  if (!words.runs.empty()) refuse("--runs");
  if (!words.ways.empty()) refuse("--way");
  if (!words.against.empty()) refuse("--against");
  if (words.ranks) refuse("--ranks");
  if (words.layers) refuse("--layers");
  if (!words.plot.empty()) refuse("--plot");
  if (!words.rate.empty()) refuse("--rate");
}

// Many bytes in runs of many lengths, and a few bytes in few runs, which tell what comes before the first byte.
std::vector<std::pair<ByteCount, ByteCount>> lengths(ByteCount most) {
  std::vector<std::pair<ByteCount, ByteCount>> out;  // run, bytes
  for (const ByteCount run : {ByteCount{256}, ByteCount{4096}, ByteCount{64u << 10}, ByteCount{1u << 20}, most}) {
    if (run <= most) out.emplace_back(run, std::min(most / run, max_runs) * run);
  }
  out.emplace_back(256, 256);
  out.emplace_back(4096, 16 * 4096);
  return out;
}

perf::Setup setup_for(const PerfWords& words, bool tcp, ByteCount most) {
  perf::Setup setup;
  setup.transport = "ucx";
  setup.tcp = tcp;
  setup.repeats = words.repeats;
  setup.staging_bytes = chosen_staging(words.staging);
  setup.deadline = std::chrono::seconds(static_cast<std::int64_t>(words.deadline_seconds));
  for (const bool local : {false, true}) {
    if (local && tcp) continue;
    for (const auto& [run, bytes] : lengths(most)) {
      auto& measurement =
          setup.measurements.emplace_back(perf::measurement_of(perf::synthetic_case(ranks, run, bytes, local)));
      measurement.run_bytes = run;
      if (!local) measurement.ways.assign(std::begin(remote_ways), std::end(remote_ways));
    }
  }
  return setup;
}

ByteCount wanted_by_each(const Case& job) {
  ByteCount most = 0;
  for (const TensorLayout& tensor : job.target.layout.sections.front().manifest->tensors) {
    most +=
        static_cast<ByteCount>(tensor.layout.local_elements(tensor.spec.shape, Rank{0})) * item_size(tensor.spec.dtype);
  }
  return most;
}

struct Fitted {
  MeasuredCost cost;
  std::vector<perf::CostSample> samples;
};

std::optional<Fitted> fit(const perf::Setup& setup, const perf::Outcome& outcome, Reach reach, Way way) {
  Fitted out{{reach, way, {}}, {}};
  for (std::size_t number = 0; number < setup.measurements.size(); ++number) {
    const perf::Measurement& measurement = setup.measurements[number];
    for (std::size_t i = 0; i < measurement.ways.size(); ++i) {
      if (measurement.ways[i].value_or(Way::local) != way) continue;
      const auto seconds = perf::move_seconds_of(setup, outcome, number, i);
      if (!seconds.possible || seconds.move <= 0) continue;
      const ByteCount bytes = wanted_by_each(measurement.job);
      out.samples.push_back({bytes, bytes / measurement.run_bytes, seconds.move});
    }
  }
  if (out.samples.size() < 3) return std::nullopt;
  out.cost.cost = perf::fit_cost(out.samples);
  return out;
}

void print(const std::vector<Fitted>& all) {
  support::write_stderr("{:<8} {:<10} {:>12} {:>12} {:>12}   measured over fitted, by run length\n", "reach", "way",
                        "latency", "per run", "bandwidth");
  for (const Fitted& one : all) {
    const WayCost& cost = one.cost.cost;
    support::write_stderr("{:<8} {:<10} {:>9.2f} us {:>9.3f} us {:>10}/s  ", to_string(one.cost.reach),
                          to_string(one.cost.way), cost.latency_seconds * 1e6, cost.run_seconds * 1e6,
                          human_bytes(cost.bytes_per_second));
    for (const perf::CostSample& sample : one.samples) {
      support::write_stderr(" {:.2f}", sample.seconds / cost.seconds(sample.bytes, sample.runs));
    }
    support::write_stderr("\n");
  }
}

}  // namespace

int calibrate(const PerfWords& words) {
  refuse_others(words);
  if (words.repeats < 1 || words.repeats > 1000) throw UsageError("--repeats: 1 to 1000 are expected");
  if (!(words.deadline_seconds >= 1 && words.deadline_seconds <= 1e6)) {
    throw UsageError("--deadline: a number of seconds from 1 on is expected");
  }
  if (const std::string name = chosen_transport(words.transport.empty() ? "auto" : words.transport);
      name != "auto" && name != "ucx") {
    throw UsageError(fmt::format("--calibrate: {} reaches no other process", name));
  }
  chosen_transport("ucx");  // or says why this build has none
  const ByteCount most = words.bytes.empty() ? default_bytes : parse_bytes("--bytes", words.bytes);
  if (most < 4096 || most % 4096 != 0) throw UsageError("--bytes: a multiple of 4096 is expected");
  const std::string path = words.calibrate.empty() ? "calibration.json" : words.calibrate;
  if (!words.output.empty()) require_writable("--output", words.output);
  std::vector<Fitted> all;
  for (const bool tcp : {false, true}) {
    support::write_stderr("measuring over {}\n", tcp ? "TCP on lo" : "shared memory");
    const perf::Setup setup = setup_for(words, tcp, most);
    const perf::Outcome outcome = run_setup(setup);
    const Reach reach = tcp ? Reach::network : Reach::host;
    if (!tcp) {
      if (auto local = fit(setup, outcome, Reach::process, Way::local)) all.push_back(std::move(*local));
    }
    for (const Way way : remote_ways) {
      if (auto one = fit(setup, outcome, reach, way)) all.push_back(std::move(*one));
    }
  }
  std::vector<MeasuredCost> measured;
  for (const Fitted& one : all) measured.push_back(one.cost);
  if (measured.empty()) throw Error(ErrorCode::unsupported, "no way could be measured");
  save_costs(path, perf::machine(), measured);
  print(all);
  support::write_stderr("written to {}; use it with --calibration {}, or SHARDWIRE_CALIBRATION\n", path, path);
  return exit_done;
}

}  // namespace shardwire::cli
