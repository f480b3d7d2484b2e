// SPDX-License-Identifier: Apache-2.0
// Control bytes of planning a job: every message that a rank sends or receives until it can plan, encoded and counted with
// its frame, in several orders of events.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "case/case.hpp"
#include "perf/control_traffic.hpp"
#include "perf/measure/row.hpp"
#include "perf/program.hpp"

namespace {

using namespace shardwire;
using Json = nlohmann::ordered_json;

Json spread(const std::vector<std::uint64_t>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {{"min", *std::min_element(values.begin(), values.end())},
          {"mean", std::llround(sum / static_cast<double>(values.size()))},
          {"max", *std::max_element(values.begin(), values.end())}};
}

Json row_of(const Case& job, const perf::ControlScenario& scenario, const std::string& commit) {
  const perf::ControlTraffic traffic = perf::control_traffic(job.source.layout, job.target.ranks, scenario);
  const auto manifest_bytes = std::accumulate(traffic.manifests.begin(), traffic.manifests.end(), std::uint64_t{0});
  const auto members = static_cast<std::uint64_t>(traffic.total.size());
  const std::uint64_t allowed = std::uint64_t{256} * members + manifest_bytes;
  const std::uint64_t allowed_host = 64 << 10;
  const auto most = *std::max_element(traffic.total.begin(), traffic.total.end());
  const auto max_host = *std::max_element(traffic.from_host.begin(), traffic.from_host.end());
  return {{"name", fmt::format("control_bytes {}, {}", job.name, scenario.name)},
          {"target", "control-bytes"},
          {"commit", perf::commit(commit)},
          {"machine", perf::machine()},
          {"versions", perf::versions()},
          {"processes", members},
          {"publishing_seconds", scenario.publishing.count()},
          {"rank_bytes", spread(traffic.total)},
          {"rank_bytes_allowed", allowed},
          {"host_bytes_per_rank", spread(traffic.from_host)},
          {"host_bytes_allowed", allowed_host},
          {"ratio", static_cast<double>(most) / static_cast<double>(allowed)},
          {"host_ratio", static_cast<double>(max_host) / static_cast<double>(allowed_host)},
          {"rosters_sent", traffic.rosters},
          {"address_bytes", spread(traffic.address_bytes)},
          {"manifests", traffic.manifests.size()},
          {"manifest_bytes", spread(traffic.manifests)},
          {"manifest_bytes_total", manifest_bytes}};
}

}  // namespace

int main(int argc, char** argv) {
  std::string path;
  std::string commit;
  perf::Program program("perf_control_bytes",
                        "Control bytes of planning a job, without sockets: one JSON row for each order of events.",
                        commit);
  program.options().add_option("CASE", path, "case file, such as cases/r12.json")->required();
  using std::chrono::seconds;
  const perf::ControlScenario scenarios[] = {
      {"readers come after all have published", false, false, seconds(10)},
      {"readers wait, publications in the order of ranks", true, false, seconds(10)},
      {"readers wait, publications in random order", true, true, seconds(1)},
      {"readers wait, publications in random order", true, true, seconds(10)},
      {"readers wait, publications in random order", true, true, seconds(60)},
      {"readers wait, publications in random order", true, true, seconds(600)},
  };
  return program.run(argc, argv, [&] {
    const Case job = load_case(path);
    for (const perf::ControlScenario& scenario : scenarios) perf::print_row(row_of(job, scenario, commit));
    return 0;
  });
}
