// SPDX-License-Identifier: Apache-2.0
#include "case/fabric_file.hpp"

#include <fmt/format.h>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/text_file.hpp"

namespace shardwire {
namespace {

constexpr std::size_t max_fabric_bytes = 1u << 20;
constexpr Extent max_links = 1024;
constexpr Extent max_ranks_per_host = 1024;
// Wide enough for any machine; a value outside has the wrong unit.
constexpr double min_gigabytes = 1e-6;
constexpr double max_gigabytes = 1e6;
constexpr double max_microseconds = 1e9;

double speed(const Node& node) {
  return 1e9 * node.number(min_gigabytes, max_gigabytes);
}

double latency(const Node& node) {
  return 1e-6 * node.at("latency_microseconds").number(0, max_microseconds);
}

void parse_network(const Node& node, ClusterModel& fabric) {
  node.require_fields({"latency_microseconds", "links", "gigabytes_per_second", "oversubscription"});
  fabric.network_latency_seconds = latency(node);
  const auto links = static_cast<std::size_t>(node.at("links").integer(1, max_links));
  const Node speeds = node.at("gigabytes_per_second");
  if (speeds.json().is_array()) {
    for (const Node& one : speeds.elements()) fabric.nics.push_back(speed(one));
    if (fabric.nics.size() != links) {
      speeds.refuse(
          fmt::format("{} speeds for {} links; give one for each, or one number for all", fabric.nics.size(), links));
    }
  } else {
    fabric.nics.assign(links, speed(speeds));
  }
  if (const auto over = node.find("oversubscription")) fabric.oversubscription = over->number(1, 1e6);
}

}  // namespace

ClusterModel parse_fabric(const std::string& text) {
  if (text.size() > max_fabric_bytes) throw CaseError("1:1: a fabric file has at most 1 MiB");
  const Json json = parse_json(text);
  const Node root(json, "");
  root.require_fields({"name", "sources", "ranks_per_host", "copy", "host", "network"});
  ClusterModel fabric;
  if (const auto name = root.find("name")) fabric.name = name->text();
  if (const auto sources = root.find("sources")) {
    for (const Node& one : sources->elements()) fabric.sources.push_back(one.text());
  }
  if (const auto ranks = root.find("ranks_per_host")) {
    fabric.ranks_per_host = static_cast<std::int32_t>(ranks->integer(1, max_ranks_per_host));
  }
  const Node copy = root.at("copy");
  copy.require_fields({"latency_microseconds", "gigabytes_per_second"});
  fabric.copy = {latency(copy), speed(copy.at("gigabytes_per_second"))};
  const Node host = root.at("host");
  host.require_fields({"latency_microseconds", "gigabytes_per_second", "total_gigabytes_per_second"});
  fabric.host = {latency(host), speed(host.at("gigabytes_per_second"))};
  if (const auto total = host.find("total_gigabytes_per_second")) fabric.host_total = speed(*total);
  parse_network(root.at("network"), fabric);
  return fabric;
}

ClusterModel load_fabric(const std::string& path) {
  const std::string text = read_text(path, max_fabric_bytes);
  try {
    return parse_fabric(text);
  } catch (const CaseError& error) {
    throw CaseError(fmt::format("{}: {}", shown_name(path), error.what()));
  }
}

}  // namespace shardwire
