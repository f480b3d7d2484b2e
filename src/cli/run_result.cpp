// SPDX-License-Identifier: Apache-2.0
#include "cli/run_result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/text.hpp"

namespace shardwire::cli {
namespace {

using Json = nlohmann::json;

// One list of names for both directions.
template <typename Report, typename Visit>
void visit_counts(Report& report, Visit visit) {
  visit("needed", report.needed_bytes);
  visit("moved", report.moved_bytes);
  visit("local", report.local_bytes);
  visit("extra", report.overread_bytes);
  visit("again", report.resent_bytes);
  visit("rounds", report.rounds);
  visit("rounds_bytes", report.rounds_bytes);
  visit("rounds_seconds", report.rounds_seconds);
  visit("digest_seconds", report.digest_seconds);
  visit("staging_budget", report.staging_budget_bytes);
  visit("staging_peak", report.staging_peak_bytes);
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

Json to_json(const MethodTable& methods) {
  Json json = Json::array();
  methods.each([&](Method method, const MethodReport& row) {
    if (row.bytes == 0) return;
    json.push_back({{"method", to_string(method)},
                    {"bytes", row.bytes},
                    {"runs", row.runs},
                    {"predicted", row.predicted_seconds},
                    {"measured", row.measured_seconds}});
  });
  return json;
}

namespace {

constexpr std::size_t gaps_per_text = 256;

Extents extents_from(const Json& json) {
  const auto numbers = json.get<std::vector<Extent>>();
  return Extents(std::span<const Extent>(numbers));
}

Gap gap_from(const Json& json) {
  return {json.at("fqn").get<std::string>(),
          json.at("state").get<std::string>(),
          {extents_from(json.at("offset")), extents_from(json.at("size"))},
          Rank{json.at("rank").get<std::int32_t>()}};
}

Json json_of(const MemberResult& result) {
  Json report;
  visit_counts(result.report, [&](const char* name, const auto& value) { report[name] = value; });
  report["seconds"] = to_json(result.report.seconds);
  Json peers = Json::array();
  for (const PeerReport& peer : result.report.peers) {
    peers.push_back({{"rank", to_int(peer.rank)},
                     {"bytes", peer.bytes},
                     {"path", peer.path},
                     {"device", peer.device},
                     {"fallback_reason", static_cast<int>(peer.fallback_reason)},
                     {"fallback_detail", peer.fallback_detail},
                     {"predicted", peer.predicted_seconds},
                     {"measured", peer.measured_seconds}});
  }
  report["peers"] = std::move(peers);
  report["methods"] = to_json(result.report.methods);
  Json ports = Json::array();
  for (const perf::PortBytes& one : result.ports) {
    ports.push_back({one.domain, one.port, one.bytes, one.line_bytes_per_second});
  }
  Json losses = Json::array();
  for (const Loss& one : result.losses) {
    losses.push_back({{"rank", to_int(one.source.rank)},
                      {"why", one.source.why},
                      {"boxes", one.source.boxes_replanned},
                      {"again", one.source.resent_bytes},
                      {"at", one.at_ns}});
  }
  Json errors = Json::array();
  for (const RunError& error : result.errors) errors.push_back({{"code", error.code}, {"message", error.message}});
  return {{"member", result.member},        {"target", result.target ? Json(to_int(*result.target)) : Json()},
          {"verified", result.verified},    {"elements", result.elements},
          {"walls", result.walls},          {"peak_rss", result.peak_rss_bytes},
          {"report", std::move(report)},    {"ports", std::move(ports)},
          {"links", to_json(result.links)}, {"losses", std::move(losses)},
          {"errors", std::move(errors)}};
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
                                   peer.at("path").get<std::string>(), peer.at("device").get<std::string>(),
                                   static_cast<FallbackReason>(peer.at("fallback_reason").get<int>()),
                                   peer.at("fallback_detail").get<std::string>(), peer.at("predicted").get<double>(),
                                   peer.at("measured").get<double>()});
  }
  for (const Json& row : report.at("methods")) {
    const auto method = method_from(row.at("method").get<std::string>());
    if (!method) continue;
    result.report.methods[*method] = {row.at("bytes").get<ByteCount>(), row.at("runs").get<ByteCount>(),
                                      row.at("predicted").get<double>(), row.at("measured").get<double>()};
  }
  for (const Json& one : json.at("ports")) {
    result.ports.push_back({one.at(0).get<std::string>(), one.at(1).get<std::string>(), one.at(2).get<ByteCount>(),
                            one.at(3).get<double>()});
  }
  result.links = member_links_from(json.at("links"));
  for (const Json& one : json.at("losses")) {
    LostSource source{.rank = Rank{one.at("rank").get<std::int32_t>()}, .why = one.at("why").get<std::string>()};
    one.at("boxes").get_to(source.boxes_replanned);
    one.at("again").get_to(source.resent_bytes);
    result.losses.push_back({std::move(source), one.at("at").get<std::int64_t>()});
  }
  for (const Json& error : json.at("errors")) {
    result.errors.push_back({error.at("code").get<std::string>(), error.at("message").get<std::string>(), {}});
  }
  return result;
}

}  // namespace

void write_result(const MemberResult& result, const std::function<void(const std::string&)>& write) {
  for (std::size_t e = 0; e < result.errors.size(); ++e) {
    const std::vector<Gap>& gaps = result.errors[e].gaps;
    for (std::size_t first = 0; first < gaps.size(); first += gaps_per_text) {
      std::string text = fmt::format("{{\"member\":{},\"error\":{},\"gaps\":[", result.member, e);
      const std::size_t end = std::min(first + gaps_per_text, gaps.size());
      for (std::size_t i = first; i < end; ++i) text += (i == first ? "" : ",") + json_text(gaps[i]);
      write(text + "]}");
    }
  }
  write(Json{{"result", json_of(result)}}.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::optional<MemberResult> ResultReader::take(const Json& json) {
  if (const auto gaps = json.find("gaps"); gaps != json.end()) {
    std::vector<Gap>& known = gaps_[{json.at("member").get<int>(), json.at("error").get<std::size_t>()}];
    for (const Json& gap : *gaps) known.push_back(gap_from(gap));
    return std::nullopt;
  }
  MemberResult result = member_result_from(json.at("result"));
  for (std::size_t e = 0; e < result.errors.size(); ++e) {
    if (auto known = gaps_.extract({result.member, e})) result.errors[e].gaps = std::move(known.mapped());
  }
  return result;
}

}  // namespace shardwire::cli
