// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "move/tuning.hpp"
#include "shardwire/error.hpp"

namespace shardwire {

namespace {

using Json = nlohmann::json;
constexpr const char* format_name = "shardwire costs 2";
constexpr double max_request_bytes = 1u << 30;
constexpr double max_streams = 16;

// Reads a file and attributes errors to it.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is no calibration file: {}", path_, why));
  }

  [[nodiscard]] double number(const Json& object, const char* name, double least) const {
    const auto found = object.find(name);
    if (found == object.end() || !found->is_number()) refuse(fmt::format("{} has no number '{}'", shown(object), name));
    const double value = found->get<double>();
    if (!std::isfinite(value) || value < least) refuse(fmt::format("'{}' of {} is {}", name, shown(object), value));
    return value;
  }
  [[nodiscard]] std::uint64_t count(const Json& object, const char* name, double most) const {
    const double value = number(object, name, 1);
    if (value > most || value != std::floor(value)) {
      refuse(fmt::format("'{}' of {} is no whole number from 1 to {}", name, shown(object), most));
    }
    return static_cast<std::uint64_t>(value);
  }
  [[nodiscard]] std::string text(const Json& object, const char* name) const {
    const auto found = object.find(name);
    if (found == object.end() || !found->is_string()) refuse(fmt::format("{} has no text '{}'", shown(object), name));
    return found->get<std::string>();
  }
  [[nodiscard]] const Json& list_of_objects(const Json& object, const char* name) const {
    const auto found = object.find(name);
    if (found == object.end() || !found->is_array()) refuse(fmt::format("it has no list '{}'", name));
    for (const Json& entry : *found) {
      if (!entry.is_object()) refuse(fmt::format("an entry of '{}' is no object", name));
    }
    return *found;
  }

  [[nodiscard]] Method method(const Json& entry) const {
    const auto found = method_from(text(entry, "method"));
    if (!found) refuse(fmt::format("the method of {} is unknown", shown(entry)));
    return *found;
  }
  [[nodiscard]] MemoryKind memory(const Json& entry) const {
    const std::string name = text(entry, "memory");
    if (name == "host") return MemoryKind::host;
    if (name != "cuda") refuse(fmt::format("the memory of {} is unknown", shown(entry)));
    return MemoryKind::cuda;
  }
  [[nodiscard]] MethodCost cost(const Json& entry) const {
    return {.latency_seconds = number(entry, "latency_seconds", 0),
            .run_seconds = number(entry, "run_seconds", 0),
            .bytes_per_second = number(entry, "bytes_per_second", 1)};
  }

 private:
  static std::string shown(const Json& object) { return object.contains("format") ? "it" : object.dump(); }

  const std::string& path_;
};

void read_costs(const Reader& reader, const Json& json, CostModel& model) {
  for (const Json& entry : reader.list_of_objects(json, "costs")) {
    const std::string transport = reader.text(entry, "transport");
    const MemoryKind memory = reader.memory(entry);
    model.set(transport, memory, reader.method(entry), reader.cost(entry));
  }
}

FastestKernels read_kernels(const Reader& reader, const Json& json) {
  if (!json.contains("kernels")) return {};
  FastestKernels kernels{.processor = reader.text(json, "processor")};
  for (const Json& entry : reader.list_of_objects(json, "kernels")) {
    kernels.entries.push_back({reader.text(entry, "run_bytes_class"), reader.text(entry, "kernel")});
  }
  return kernels;
}

TcpSettings read_tcp(const Reader& reader, const Json& json) {
  const auto found = json.find("tcp");
  if (found == json.end()) return {};
  if (!found->is_object()) reader.refuse("'tcp' is no object");
  TcpSettings tcp;
  if (found->contains("request_bytes")) tcp.request_bytes = reader.count(*found, "request_bytes", max_request_bytes);
  if (found->contains("streams")) tcp.streams = static_cast<int>(reader.count(*found, "streams", max_streams));
  return tcp;
}

}  // namespace

CostModel load_costs(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) throw Error(ErrorCode::invalid_argument, fmt::format("the calibration file {} cannot be read", path));
  const Reader reader(path);
  const Json json = Json::parse(content.str(), nullptr, false);
  if (!json.is_object()) reader.refuse("it is no JSON object");
  if (!json.contains("format")) reader.refuse("it has no text 'format'");
  const std::string format = reader.text(json, "format");
  CostModel model;
  if (format != format_name) reader.refuse(fmt::format("its format is '{}', not '{}'", format, format_name));
  read_costs(reader, json, model);
  model.set_tuning({.tcp = read_tcp(reader, json), .kernels = read_kernels(reader, json)});
  return model;
}

void save_costs(const std::string& path, const std::string& machine, const std::vector<MeasuredCost>& measured) {
  save_calibration(path, machine, measured, {}, std::nullopt);
}

void save_calibration(const std::string& path, const std::string& machine, const std::vector<MeasuredCost>& measured,
                      const FastestKernels& kernels, const std::optional<TcpSettings>& tcp) {
  nlohmann::ordered_json json;
  json["format"] = format_name;
  json["machine"] = machine;
  if (!kernels.entries.empty()) json["processor"] = kernels.processor;
  json["costs"] = nlohmann::ordered_json::array();
  for (const MeasuredCost& one : measured) {
    json["costs"].push_back({{"transport", one.method == Method::local ? "local" : one.transport},
                             {"memory", one.memory == MemoryKind::cuda ? "cuda" : "host"},
                             {"method", to_string(one.method)},
                             {"latency_seconds", one.cost.latency_seconds},
                             {"run_seconds", one.cost.run_seconds},
                             {"bytes_per_second", one.cost.bytes_per_second}});
  }
  for (const FastestKernels::Entry& one : kernels.entries) {
    json["kernels"].push_back({{"run_bytes_class", one.run_bytes_class}, {"kernel", one.kernel}});
  }
  if (tcp) json["tcp"] = {{"request_bytes", tcp->request_bytes}, {"streams", tcp->streams}};
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
