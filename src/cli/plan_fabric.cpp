// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_fabric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cli/text.hpp"
#include "support/checked.hpp"

namespace shardwire::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t rows_shown = 10;

bool belongs_to_process(LinkKind kind) {
  return kind == LinkKind::copy || kind == LinkKind::host_out || kind == LinkKind::host_in;
}

std::string place_of(const FabricLink& link) {
  if (link.kind == LinkKind::core) return "";
  if (belongs_to_process(link.kind)) return fmt::format("process {}", link.owner);
  if (link.kind == LinkKind::host_total) return fmt::format("host {}", link.owner);
  return fmt::format("host {} link {}", link.owner, link.index);
}

double ratio_of(const RestorePrediction& prediction) {
  return prediction.bound_seconds > 0 ? prediction.seconds / prediction.bound_seconds : 1;
}

}  // namespace

FabricForecast forecast(const Case& job, const ClusterModel& fabric, std::span<const Flow> flows,
                        std::span<const std::int32_t> processes) {
  FabricForecast result;
  result.name = fabric.name;
  result.sources = fabric.sources;
  const int ranks_per_host = job.ranks_per_host > 0 ? job.ranks_per_host : fabric.ranks_per_host;
  result.hosts_given = ranks_per_host > 0;
  result.ranks_per_host = std::max(ranks_per_host, 1);
  result.relabelled = !processes.empty();
  ClusterModel cluster = fabric;
  cluster.hosts = support::ceil_div(std::max(job.source.ranks, job.target.ranks), result.ranks_per_host);
  result.prediction = predict(cluster, result.ranks_per_host, flows, processes);
  return result;
}

void print_forecast(const FabricForecast& forecast) {
  const RestorePrediction& prediction = forecast.prediction;
  fmt::print("fabric{}{}: {} hosts of {} rank{}{}{}\n", forecast.name.empty() ? "" : " ", forecast.name,
             prediction.hosts, forecast.ranks_per_host, forecast.ranks_per_host == 1 ? "" : "s",
             forecast.hosts_given ? "" : " (neither the case nor the fabric says how many)",
             forecast.relabelled ? ", target ranks in the best processes" : "");
  fmt::print("  predicted   {:>10}   {:.3f} of the bound\n", human_seconds(prediction.seconds), ratio_of(prediction));
  fmt::print("  bound       {:>10}   busiest link at full speed, and its latency\n",
             human_seconds(prediction.bound_seconds));
  for (const std::string& source : forecast.sources) fmt::print("  from        {}\n", source);
  fmt::print("  in processes {}, between processes of a host {}, between hosts {}\n", human_bytes(prediction.copied),
             human_bytes(prediction.within_hosts), human_bytes(prediction.between_hosts));
  if (prediction.resolution_seconds > 0) {
    fmt::print("  approximate: flows that end within {} of each other end together\n",
               human_seconds(prediction.resolution_seconds));
  }
  fmt::print("  busiest links\n");
  for (std::size_t i = 0; i < std::min(rows_shown, prediction.links.size()); ++i) {
    const FabricLink& link = prediction.links[i];
    fmt::print("    {:<12} {:<18}{:>10}{:>8.1f} % of the time\n", to_string(link.kind), place_of(link),
               human_bytes(link.bytes), 100 * link.utilisation);
  }
  std::vector<HostFlow> pairs;
  std::copy_if(prediction.host_flows.begin(), prediction.host_flows.end(), std::back_inserter(pairs),
               [](const HostFlow& one) { return one.source != one.target; });
  if (pairs.empty()) return;
  const auto end = pairs.begin() + static_cast<std::ptrdiff_t>(std::min(rows_shown, pairs.size()));
  std::partial_sort(pairs.begin(), end, pairs.end(), [](const HostFlow& a, const HostFlow& b) {
    return std::tuple(b.bytes, a.source, a.target) < std::tuple(a.bytes, b.source, b.target);
  });
  fmt::print("  host pairs with most bytes, of {}\n", pairs.size());
  for (auto pair = pairs.begin(); pair != end; ++pair) {
    fmt::print("    host {} -> host {}: {}\n", pair->source, pair->target, human_bytes(pair->bytes));
  }
}

std::string forecast_json(const FabricForecast& forecast) {
  const RestorePrediction& prediction = forecast.prediction;
  OrderedJson links = OrderedJson::array();
  for (const FabricLink& link : prediction.links) {
    OrderedJson one = {{"kind", to_string(link.kind)}};
    if (link.kind != LinkKind::core) one[belongs_to_process(link.kind) ? "process" : "host"] = link.owner;
    if (link.kind == LinkKind::nic_out || link.kind == LinkKind::nic_in) one["link"] = link.index;
    one["bytes"] = link.bytes;
    one["bytes_per_second"] = link.bytes_per_second;
    one["utilisation"] = link.utilisation;
    links.push_back(std::move(one));
  }
  OrderedJson pairs = OrderedJson::array();
  for (const HostFlow& pair : prediction.host_flows) {
    pairs.push_back({{"source", pair.source}, {"target", pair.target}, {"bytes", pair.bytes}});
  }
  const OrderedJson json = {{"name", forecast.name},
                            {"sources", forecast.sources},
                            {"hosts", prediction.hosts},
                            {"ranks_per_host", forecast.ranks_per_host},
                            {"hosts_given", forecast.hosts_given},
                            {"relabelled", forecast.relabelled},
                            {"seconds", prediction.seconds},
                            {"bound_seconds", prediction.bound_seconds},
                            {"ratio", ratio_of(prediction)},
                            {"resolution_seconds", prediction.resolution_seconds},
                            {"steps", prediction.steps},
                            {"bytes",
                             {{"in_processes", prediction.copied},
                              {"within_hosts", prediction.within_hosts},
                              {"between_hosts", prediction.between_hosts}}},
                            {"links", std::move(links)},
                            {"host_pairs", std::move(pairs)}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace shardwire::cli
