// SPDX-License-Identifier: Apache-2.0
#include "case/fabric_file.hpp"

#include <fmt/format.h>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/text_file.hpp"

namespace shardwire {
namespace {

constexpr std::size_t max_file_bytes = 1u << 20;
constexpr Extent max_links = 1024;
// Wide enough for any machine; outside it the unit was mistaken.
constexpr double least_gigabytes = 1e-6;
constexpr double most_gigabytes = 1e6;
constexpr double most_microseconds = 1e9;

double speed(const Node& node) {
  return 1e9 * node.number(least_gigabytes, most_gigabytes);
}

double latency(const Node& node) {
  return 1e-6 * node.at("latency_microseconds").number(0, most_microseconds);
}

void parse_network(const Node& node, Fabric& fabric) {
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

Fabric parse_fabric(const std::string& text) {
  if (text.size() > max_file_bytes) throw CaseError("1:1: a fabric file has at most 1 MiB");
  const Json json = parse_json(text);
  const Node root(json, "");
  root.require_fields({"name", "copy", "host", "network"});
  Fabric fabric;
  if (const auto name = root.find("name")) fabric.name = name->text();
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

Fabric load_fabric(const std::string& path) {
  const std::string text = read_text(path, max_file_bytes);
  try {
    return parse_fabric(text);
  } catch (const CaseError& error) {
    throw CaseError(fmt::format("{}: {}", shown_name(path), error.what()));
  }
}

}  // namespace shardwire
