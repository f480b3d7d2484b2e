// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shardwire/costs.hpp"
#include "shardwire/error.hpp"

namespace shardwire {

namespace {

using Json = nlohmann::json;
constexpr const char* format_name = "shardwire costs 1";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is no calibration file: {}", path, why));
}

double number(const Json& entry, const char* name, double least, const std::string& path) {
  const auto found = entry.find(name);
  if (found == entry.end() || !found->is_number()) refuse(path, fmt::format("an entry has no number '{}'", name));
  const double value = found->get<double>();
  if (!std::isfinite(value) || value < least) refuse(path, fmt::format("'{}' of an entry is {}", name, value));
  return value;
}

std::string text(const Json& entry, const char* name, const std::string& path) {
  const auto found = entry.find(name);
  if (found == entry.end() || !found->is_string()) refuse(path, fmt::format("it has no text '{}'", name));
  return found->get<std::string>();
}

}  // namespace

CostModel load_costs(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) throw Error(ErrorCode::invalid_argument, fmt::format("the calibration file {} cannot be read", path));
  const Json json = Json::parse(content.str(), nullptr, false);
  if (!json.is_object()) refuse(path, "it is no JSON object");
  if (text(json, "format", path) != format_name) refuse(path, fmt::format("its format is not '{}'", format_name));
  const auto costs = json.find("costs");
  if (costs == json.end() || !costs->is_array()) refuse(path, "it has no list 'costs'");
  CostModel model;
  for (const Json& entry : *costs) {
    if (!entry.is_object()) refuse(path, "an entry of 'costs' is no object");
    const auto reach = reach_from(text(entry, "reach", path));
    const auto way = way_from(text(entry, "way", path));
    if (!reach || !way) refuse(path, fmt::format("the reach or way of {} is unknown", entry.dump()));
    model.at(*reach, *way) = {.latency_seconds = number(entry, "latency_seconds", 0, path),
                              .run_seconds = number(entry, "run_seconds", 0, path),
                              .bytes_per_second = number(entry, "bytes_per_second", 1, path)};
  }
  return model;
}

void save_costs(const std::string& path, const std::string& machine, const std::vector<MeasuredCost>& measured) {
  nlohmann::ordered_json json;
  json["format"] = format_name;
  json["machine"] = machine;
  json["costs"] = nlohmann::ordered_json::array();
  for (const MeasuredCost& one : measured) {
    json["costs"].push_back({{"reach", to_string(one.reach)},
                             {"way", to_string(one.way)},
                             {"latency_seconds", one.cost.latency_seconds},
                             {"run_seconds", one.cost.run_seconds},
                             {"bytes_per_second", one.cost.bytes_per_second}});
  }
  const std::string fresh = path + ".new";
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  file.close();
  if (!file || std::rename(fresh.c_str(), path.c_str()) != 0) {
    std::remove(fresh.c_str());
    throw Error(ErrorCode::out_of_resources, fmt::format("the calibration file {} cannot be written", path));
  }
}

}  // namespace shardwire
