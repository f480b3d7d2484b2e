// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/contiguous.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwire/plan.hpp"

namespace shardwire::perf {

Case contiguous_case(const Setup& setup, const Case& job) {
  Planner planner = planner_of(setup, job);
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  nlohmann::ordered_json held = nlohmann::ordered_json::object();
  nlohmann::ordered_json wanted = nlohmann::ordered_json::object();
  for (const Flow& flow : planner.totals(job.source.lost).flows) {
    if (flow.bytes == 0) continue;
    const std::string name = fmt::format("{} to {}", to_int(flow.source), to_int(flow.target));
    tensors.push_back({{"fqn", name}, {"shape", {flow.bytes}}, {"rule", name}});
    const nlohmann::ordered_json whole{{{0}, {flow.bytes}}};
    held[name] = {{"boxes", {{std::to_string(to_int(flow.source)), whole}}}};
    wanted[name] = {{"boxes", {{std::to_string(to_int(flow.target)), whole}}}};
  }
  const nlohmann::ordered_json text{{"name", job.name + " contiguous"},
                                    {"dtype", "u8"},
                                    {"states", {"master"}},
                                    {"tensors", tensors},
                                    {"source", {{"ranks", job.source.ranks}, {"rules", held}}},
                                    {"target", {{"ranks", job.target.ranks}, {"rules", wanted}}}};
  return parse_case(text.dump());
}

}  // namespace shardwire::perf
