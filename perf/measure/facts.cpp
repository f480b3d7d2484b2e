// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/facts.hpp"

#include <nlohmann/json.hpp>

namespace shardwire::perf {

namespace {

using Json = nlohmann::json;

// One list of fields serves both directions.
template <typename Report, typename Visit>
void each_number(Report& report, Visit visit) {
  for (auto* one :
       {&report.needed_bytes, &report.moved_bytes, &report.local_bytes, &report.overread_bytes, &report.resent_bytes,
        &report.staging_budget_bytes, &report.staging_peak_bytes, &report.rounds, &report.rounds_bytes})
    visit(*one);
}

template <typename Seconds, typename Visit>
void each_stage(Seconds& s, Visit visit) {
  for (auto* one : {&s.wall, &s.join, &s.plan, &s.bind, &s.move, &s.verify, &s.commit}) visit(*one);
}

Json to_json(const TurnFacts& turn) {
  Json spans = Json::array();
  for (const Span& span : turn.spans) spans.push_back({span.begin_ns, span.end_ns, span.cpu_ns});
  Json stages = Json::array();
  for (const StageSeconds& seconds : turn.stages) {
    Json& one = stages.emplace_back(Json::array());
    each_stage(seconds, [&](double value) { one.push_back(value); });
  }
  Json report = Json::array();
  each_number(turn.report, [&](ByteCount value) { report.push_back(value); });
  Json methods = Json::array();
  turn.report.methods.each([&](Method method, const MethodReport& row) {
    methods.push_back({to_string(method), row.bytes, row.runs, row.predicted_seconds, row.measured_seconds});
  });
  Json paths = Json::array();
  for (const PathFacts& path : turn.paths) {
    paths.push_back({path.source, path.bytes, path.path, path.port, path.line_bytes_per_second});
  }
  return {{"paths", paths},
          {"spans", spans},
          {"methods", methods},
          {"refused", turn.refused},
          {"stages", stages},
          {"report", report},
          {"memory", {turn.memory.own, turn.memory.allowed, turn.memory.mapped}},
          {"elements", turn.elements}};
}

TurnFacts turn_from(const Json& json) {
  TurnFacts turn;
  for (const Json& span : json.at("spans")) turn.spans.push_back({span.at(0), span.at(1), span.at(2)});
  turn.refused = json.at("refused");
  for (const Json& one : json.at("stages")) {
    std::size_t at = 0;
    each_stage(turn.stages.emplace_back(), [&](double& value) { value = one.at(at++); });
  }
  std::size_t at = 0;
  each_number(turn.report, [&](ByteCount& value) { value = json.at("report").at(at++); });
  for (const Json& row : json.at("methods")) {
    if (const auto method = method_from(row.at(0).get<std::string>())) {
      turn.report.methods[*method] = {row.at(1), row.at(2), row.at(3), row.at(4)};
    }
  }
  for (const Json& path : json.at("paths")) {
    turn.paths.push_back({path.at(0), path.at(1), path.at(2), path.at(3), path.at(4)});
  }
  const Json& memory = json.at("memory");
  turn.memory = {memory.at(0), memory.at(1), memory.at(2)};
  turn.elements = json.at("elements");
  return turn;
}

}  // namespace

Json to_json(const MemberFacts& facts) {
  Json measurements = Json::array();
  for (const MeasurementFacts& measurement : facts.measurements) {
    Json turns = Json::array();
    for (const TurnFacts& turn : measurement.turns) turns.push_back(to_json(turn));
    measurements.push_back({{"wanted", measurement.wanted}, {"reads", measurement.reads}, {"turns", turns}});
  }
  return {{"fabric", facts.fabric},
          {"host", facts.host},
          {"domain", facts.domain},
          {"device", {facts.device.name, facts.device.id, facts.device.runtime, facts.device.peak_bytes_per_second}},
          {"measurements", measurements}};
}

MemberFacts member_facts_from(const Json& json) {
  MemberFacts facts;
  facts.fabric = json.at("fabric");
  facts.host = json.at("host");
  facts.domain = json.at("domain");
  const Json& device = json.at("device");
  facts.device = {device.at(0), device.at(1), device.at(2), device.at(3)};
  for (const Json& one : json.at("measurements")) {
    MeasurementFacts& measurement = facts.measurements.emplace_back();
    measurement.wanted = one.at("wanted");
    measurement.reads = one.at("reads");
    for (const Json& turn : one.at("turns")) measurement.turns.push_back(turn_from(turn));
  }
  return facts;
}

}  // namespace shardwire::perf
