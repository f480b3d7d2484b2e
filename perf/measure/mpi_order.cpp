// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/mpi_order.hpp"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace shardwire::perf {

namespace {

using Json = nlohmann::json;

void write(const std::string& path, const Json& json) {
  std::ofstream file(path);
  file << json.dump(-1, ' ', false, Json::error_handler_t::replace);
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{} cannot be written", path));
}

Json read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(fmt::format("{} cannot be read", path));
  return Json::parse(file);
}

}  // namespace

void write_order(const MpiFolder& folder, const Setup& setup) {
  Json measurements = Json::array();
  for (const Measurement& measurement : setup.measurements) {
    Json against = Json::array();
    for (const Against one : measurement.against) against.push_back(static_cast<int>(one));
    measurements.push_back(
        {{"case", measurement.case_text}, {"methods", measurement.methods.size()}, {"against", against}});
  }
  write(folder.order(), {{"measurements", measurements},
                         {"disjoint", setup.disjoint},
                         {"repeats", setup.repeats},
                         {"replicas", static_cast<int>(setup.replicas)},
                         {"tcp", setup.tcp}});
}

Setup read_order(const MpiFolder& folder) {
  const Json json = read(folder.order());
  Setup setup;
  setup.disjoint = json.at("disjoint");
  setup.repeats = json.at("repeats");
  setup.replicas = static_cast<Replicas>(json.at("replicas").get<int>());
  setup.tcp = json.at("tcp");
  for (const Json& one : json.at("measurements")) {
    Measurement& measurement = setup.measurements.emplace_back();
    measurement.case_text = one.at("case");
    measurement.job = parse_case(measurement.case_text);
    measurement.methods.resize(one.at("methods"));
    for (const Json& against : one.at("against")) {
      measurement.against.push_back(static_cast<Against>(against.get<int>()));
    }
  }
  return setup;
}

void write_facts(const MpiFolder& folder, const MpiFacts& facts) {
  Json members = Json::array();
  for (const MemberFacts& member : facts.members) members.push_back(to_json(member));
  write(folder.facts(), {{"version", facts.version}, {"transport", facts.transport}, {"members", members}});
}

MpiFacts read_facts(const MpiFolder& folder) {
  const Json json = read(folder.facts());
  MpiFacts facts{json.at("version"), json.at("transport"), {}};
  for (const Json& member : json.at("members")) facts.members.push_back(member_facts_from(member));
  return facts;
}

}  // namespace shardwire::perf
