// SPDX-License-Identifier: Apache-2.0
#include "cli/run_result.hpp"

#include <nlohmann/json.hpp>

namespace shardwire::cli {
namespace {

using Json = nlohmann::json;

// One list of names for both directions.
template <typename Report, typename Visit>
void visit_counts(Report& report, Visit visit) {
  visit("needed", report.needed);
  visit("moved", report.moved);
  visit("local", report.local);
  visit("extra", report.extra);
  visit("again", report.again);
  visit("way_local", report.ways.local);
  visit("way_mapped", report.ways.mapped);
  visit("way_read", report.ways.read);
  visit("way_packed", report.ways.packed);
  visit("way_over_read", report.ways.over_read);
  visit("way_grouped", report.ways.grouped);
  visit("way_straight", report.ways.straight);
  visit("digest_seconds", report.digest_seconds);
  visit("staging_budget", report.staging_budget);
  visit("staging_peak", report.staging_peak);
  visit("registered_bytes", report.registered_bytes);
  visit("registration_seconds", report.registration_seconds);
  visit("transport", report.transport);
}

template <typename Seconds, typename Visit>
void visit_stages(Seconds& seconds, Visit visit) {
  visit("wall", seconds.wall);
  visit("join", seconds.join);
  visit("plan", seconds.plan);
  visit("bind", seconds.bind);
  visit("move", seconds.move);
  visit("verify", seconds.verify);
  visit("commit", seconds.commit);
}

}  // namespace

Json to_json(const StageSeconds& seconds) {
  Json json;
  visit_stages(seconds, [&](const char* name, double value) { json[name] = value; });
  return json;
}

Json to_json(const MemberResult& result) {
  Json report;
  visit_counts(result.report, [&](const char* name, const auto& value) { report[name] = value; });
  report["seconds"] = to_json(result.report.seconds);
  Json peers = Json::array();
  for (const PeerReport& peer : result.report.peers) {
    peers.push_back({{"rank", to_int(peer.rank)}, {"bytes", peer.bytes}, {"path", peer.path}, {"detail", peer.detail}});
  }
  report["peers"] = std::move(peers);
  Json costs = Json::array();
  for (const WayCostReport& cost : result.report.costs) {
    costs.push_back({{"way", to_string(cost.way)},
                     {"bytes", cost.bytes},
                     {"runs", cost.runs},
                     {"predicted", cost.predicted_seconds},
                     {"measured", cost.measured_seconds}});
  }
  report["costs"] = std::move(costs);
  Json errors = Json::array();
  for (const RunError& error : result.errors) errors.push_back({{"code", error.code}, {"message", error.message}});
  return {{"member", result.member},     {"target", result.target ? Json(to_int(*result.target)) : Json()},
          {"verified", result.verified}, {"elements", result.elements},
          {"walls", result.walls},       {"peak_rss", result.peak_rss_bytes},
          {"report", std::move(report)}, {"errors", std::move(errors)}};
}

MemberResult member_result_from(const Json& json) {
  MemberResult result;
  json.at("member").get_to(result.member);
  if (!json.at("target").is_null()) result.target = Rank{json.at("target").get<std::int32_t>()};
  json.at("verified").get_to(result.verified);
  json.at("elements").get_to(result.elements);
  json.at("walls").get_to(result.walls);
  json.at("peak_rss").get_to(result.peak_rss_bytes);
  const Json& report = json.at("report");
  visit_counts(result.report, [&](const char* name, auto& value) { report.at(name).get_to(value); });
  visit_stages(result.report.seconds,
               [&](const char* name, double& value) { report.at("seconds").at(name).get_to(value); });
  for (const Json& peer : report.at("peers")) {
    result.report.peers.push_back({Rank{peer.at("rank").get<std::int32_t>()}, peer.at("bytes").get<ByteCount>(),
                                   peer.at("path").get<std::string>(), peer.at("detail").get<std::string>()});
  }
  for (const Json& cost : report.at("costs")) {
    const auto way = way_from(cost.at("way").get<std::string>());
    if (!way) continue;
    result.report.costs.push_back({*way, cost.at("bytes").get<ByteCount>(), cost.at("runs").get<ByteCount>(),
                                   cost.at("predicted").get<double>(), cost.at("measured").get<double>()});
  }
  for (const Json& error : json.at("errors")) {
    result.errors.push_back({error.at("code").get<std::string>(), error.at("message").get<std::string>()});
  }
  return result;
}

}  // namespace shardwire::cli
