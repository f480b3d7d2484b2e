// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/job_options.hpp"
#include "cli/perf_options.hpp"
#include "cli/text.hpp"
#include "control/tls.hpp"
#include "move/traits.hpp"
#include "move/tuning.hpp"
#include "perf/measure/costs_fit.hpp"
#include "perf/measure/fastest_kernels.hpp"
#include "perf/measure/row.hpp"
#include "perf/measure/rows.hpp"
#include "perf/measure/synthetic.hpp"
#include "support/environment.hpp"
#include "support/list_of.hpp"
#include "support/stderr.hpp"
#include "transport/transport.hpp"

namespace shardwire::cli {
namespace {

constexpr int ranks_of_pair = 2;
constexpr ByteCount default_bytes = 32u << 20;
// A method that sends each run separately is slow with many of them.
constexpr ByteCount max_runs = 16384;

void refuse_others(const PerfWords& words) {
  const auto refuse = [](const char* option) {
    throw UsageError(fmt::format("--calibrate measures each method as it is; it takes no {}", option));
  };
  if (!words.path.empty()) refuse("CASE");
  if (words.tcp) refuse("--tcp");
  if (words.memory != "host") refuse("--memory");
  if (parse_verify(words.verify) != Verify::generation) refuse("--verify");
  if (parse_replicas(words.replicas) != Replicas::spread) refuse("--replicas");
  if (words.ordinary) refuse("--ordinary");
  if (words.starts) refuse("--fresh");
  if (words.disjoint) refuse("--disjoint");
  if (words.pairs) refuse("--pairs");
  if (!words.runs.empty()) refuse("--runs");
  if (!words.methods.empty()) refuse("--method");
  if (!words.against.empty()) refuse("--against");
  if (words.ranks) refuse("--ranks");
  if (words.layers) refuse("--layers");
  if (!words.output.empty()) refuse("--output");
  if (words.json) refuse("--json");
  if (!words.target.empty()) refuse("--target");
  if (!words.calibration.empty()) refuse("--calibration");
  if (!words.rate.empty()) refuse("--rate");
  if (support::is_set("SHARDWIRE_ENCRYPT_PAYLOAD")) refuse("SHARDWIRE_ENCRYPT_PAYLOAD");
}

// Many bytes in runs of many lengths, and few bytes in few runs, which show the cost before the first byte.
std::vector<std::pair<ByteCount, ByteCount>> lengths(ByteCount most) {
  std::vector<std::pair<ByteCount, ByteCount>> out;  // run, bytes
  for (const ByteCount run : {ByteCount{256}, ByteCount{4096}, ByteCount{64u << 10}, ByteCount{1u << 20}, most}) {
    if (run <= most) out.emplace_back(run, std::min(most / run, max_runs) * run);
  }
  out.emplace_back(256, 256);
  out.emplace_back(4096, 16 * 4096);
  return out;
}

/// One set of processes that measures the costs of some methods of a transport.
struct Pass {
  std::string transport;
  bool ordinary = false;   ///< see perf::Setup
  bool encrypted = false;  ///< likewise
  bool local = false;      ///< also measures copies within a process: once, they need no transport
  std::vector<std::optional<Method>> methods;
};

// Of those that `names` lists or that "auto" measures: network hardware is measured only when named, since two
// processes of one host do not represent a network. Nothing here opens devices, because members are forked from this
// process.
bool is_measured(const transport::Transport& one, const std::string& names) {
  if (one.reach == Reach::process) return false;
  if (names != transport::automatic) {
    return fmt::format(",{},", names).find(fmt::format(",{},", one.name)) != std::string::npos;
  }
  return !(one.preference.read > 0 && one.reach == Reach::network) && one.probe(transport::Asked::automatically).viable;
}

// The same again, if members can encrypt. Members are forked from this process, so a child loads the library.
void add_encrypted(std::vector<Pass>& passes) {
  const std::string why_not = said_by_a_child([] {
    std::string why;
    if (load_tls(why) == nullptr) throw UsageError(why);
  });
  if (!why_not.empty()) return support::write_stderr("not measured: tcp_encrypted: {}\n", why_not);
  Pass pass = passes.back();
  pass.encrypted = true;
  pass.local = false;
  passes.push_back(std::move(pass));
}

// Mappable memory is read by mapping, so reads are measured with other memory there. Fabrics of a network read only
// memory registered with them, such as arenas.
std::vector<Pass> passes_for(const std::string& names) {
  std::vector<Pass> out;
  for (const transport::Transport& one : transport::registered()) {
    if (!is_measured(one, names)) continue;
    const bool maps = one.preference.map > 0;
    const bool reads = one.preference.read > 0;
    const auto add = [](Pass& pass, move::Carrier by) {
      move::each_method_by(by, [&](Method method) { pass.methods.emplace_back(method); });
    };
    Pass direct{.transport = std::string(one.name), .local = out.empty(), .methods = {}};
    if (maps) add(direct, move::Carrier::mapping);
    if (one.preference.message > 0) add(direct, move::Carrier::messages);
    if (reads && !maps) add(direct, move::Carrier::reads);
    if (!direct.methods.empty()) out.push_back(std::move(direct));
    if (reads && maps) {
      Pass ordinary{.transport = std::string(one.name), .ordinary = true, .local = out.empty(), .methods = {}};
      add(out.emplace_back(std::move(ordinary)), move::Carrier::reads);
    }
    if (one.name == "tcp") add_encrypted(out);
  }
  if (out.empty()) throw UsageError(fmt::format("--calibrate: {} reaches no other process", names));
  return out;
}

perf::Setup setup_of(const PerfWords& words, const std::string& transport) {
  perf::Setup setup;
  setup.transport = transport;
  setup.repeats = words.repeats;
  setup.staging_bytes = chosen_staging(words.staging);
  setup.timeout = std::chrono::seconds(static_cast<std::int64_t>(words.timeout_seconds));
  return setup;
}

perf::Setup setup_for(const PerfWords& words, const Pass& pass, ByteCount most) {
  perf::Setup setup = setup_of(words, pass.transport);
  setup.ordinary = pass.ordinary;
  setup.encrypted = pass.encrypted;
  for (const bool local : {false, true}) {
    if (local && !pass.local) continue;
    for (const auto& [run, bytes] : lengths(most)) {
      auto& measurement =
          setup.measurements.emplace_back(perf::measurement_of(perf::synthetic_case(ranks_of_pair, run, bytes, local)));
      measurement.run_bytes = run;
      if (!local) measurement.methods = pass.methods;
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

std::optional<Fitted> fit(const perf::Setup& setup, const perf::Outcome& outcome, Method method) {
  const std::string transport = method == Method::local ? "local" : setup.encrypted ? "tcp_encrypted" : setup.transport;
  Fitted out{{.transport = transport, .memory = MemoryKind::host, .method = method, .cost = {}}, {}};
  for (std::size_t number = 0; number < setup.measurements.size(); ++number) {
    const perf::Measurement& measurement = setup.measurements[number];
    for (std::size_t i = 0; i < measurement.methods.size(); ++i) {
      if (measurement.methods[i].value_or(Method::local) != method) continue;
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

constexpr TcpSettings tcp_candidates[] = {
    TcpSettings{}, {64u << 10, 1}, {128u << 10, 1}, {512u << 10, 1}, {1u << 20, 1}, {256u << 10, 2}, {256u << 10, 4},
};
constexpr int tcp_rounds = 3;
// The built-in value stays unless another is clearly faster: the next run may differ.
constexpr double worth_a_change = 0.95;

double seconds_over_tcp(const PerfWords& words, const TcpSettings& settings, ByteCount bytes) {
  perf::Setup setup = setup_of(words, "tcp");
  setup.costs.set_tuning({.tcp = settings});
  auto& measurement =
      setup.measurements.emplace_back(perf::measurement_of(perf::synthetic_case(ranks_of_pair, bytes, bytes, false)));
  measurement.methods = {Method::zcopy};
  return perf::move_seconds_of(setup, run_setup(setup), 0, 0).move;
}

// Candidates take turns, so that a slow minute affects all of them.
TcpSettings fastest_tcp(const PerfWords& words, ByteCount bytes) {
  support::write_stderr("measuring requests and streams of tcp\n");
  std::array<std::vector<double>, std::size(tcp_candidates)> seconds;
  for (int round = 0; round < tcp_rounds; ++round) {
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      seconds[i].push_back(seconds_over_tcp(words, tcp_candidates[i], bytes));
    }
  }
  const auto median = [&](std::size_t i) { return perf::spread_of(seconds[i]).median; };
  std::size_t best = 0;
  for (std::size_t i = 1; i < seconds.size(); ++i) {
    if (median(i) < std::min(median(best), worth_a_change * median(0))) best = i;
  }
  const TcpSettings& found = tcp_candidates[best];
  support::write_stderr("tcp: requests of {} bytes, {}, {:.2f} of the time of those that are built in\n",
                        found.request_bytes, support::counted(found.streams, "stream"), median(best) / median(0));
  return found;
}

void print(const std::vector<Fitted>& all) {
  support::write_stderr("{:<13} {:<10} {:>12} {:>12} {:>12}   measured over fitted, by run length\n", "transport",
                        "method", "latency", "per run", "bandwidth");
  for (const Fitted& one : all) {
    const MethodCost& cost = one.cost.cost;
    support::write_stderr("{:<13} {:<10} {:>9.2f} us {:>9.3f} us {:>12}  ", one.cost.transport,
                          to_string(one.cost.method), cost.latency_seconds * 1e6, cost.run_seconds * 1e6,
                          human_speed(cost.bytes_per_second));
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
  if (!(words.timeout_seconds >= 1 && words.timeout_seconds <= 1e6)) {
    throw UsageError("--timeout: a number of seconds from 1 on is expected");
  }
  const std::vector<Pass> passes = passes_for(chosen_transport(words.transport.empty() ? "auto" : words.transport));
  const ByteCount most = words.bytes.empty() ? default_bytes : parse_bytes("--bytes", words.bytes);
  if (most < 4096 || most % 4096 != 0) throw UsageError("--bytes: a multiple of 4096 is expected");
  const std::string path = words.calibrate.empty() ? "calibration.json" : words.calibrate;
  std::vector<Fitted> all;
  for (const Pass& pass : passes) {
    support::write_stderr("measuring {}{}{}\n", pass.transport, pass.ordinary ? ", ordinary memory" : "",
                          pass.encrypted ? ", encrypted" : "");
    const perf::Setup setup = setup_for(words, pass, most);
    const perf::Outcome outcome = run_setup(setup);
    if (pass.local) {
      if (auto local = fit(setup, outcome, Method::local)) all.push_back(std::move(*local));
    }
    for (const auto& method : pass.methods) {
      if (auto one = fit(setup, outcome, *method)) all.push_back(std::move(*one));
    }
    for (const std::string& refusal : perf::refusals_of(setup, outcome)) {
      support::write_stderr("not measured: {}\n", refusal);
    }
  }
  std::vector<MeasuredCost> measured;
  measured.reserve(all.size());
  for (const Fitted& one : all) measured.push_back(one.cost);
  if (measured.empty()) throw Error(ErrorCode::unsupported, "no method could be measured");
  std::optional<TcpSettings> tcp;
  if (std::ranges::any_of(passes, [](const Pass& pass) { return pass.transport == "tcp"; })) {
    tcp = fastest_tcp(words, most);
  }
  // After the members, which are forked from a process of one thread that has touched little memory.
  support::write_stderr("measuring copy kernels\n");
  const FastestKernels kernels = perf::measure_kernels();
  save_calibration(path, perf::machine(), measured, kernels, tcp);
  print(all);
  for (const FastestKernels::Entry& one : kernels.entries) {
    support::write_stderr("{}: {}\n", one.run_bytes_class, one.kernel);
  }
  support::write_stderr("written to {}; use it with --calibration {}, or SHARDWIRE_CALIBRATION\n", path, path);
  return exit_done;
}

}  // namespace shardwire::cli
