// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/synthetic.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace shardwire::perf {

namespace {

constexpr ByteCount item_bytes = 4;

}  // namespace

std::string synthetic_case(int ranks, ByteCount run_bytes, ByteCount wanted_bytes, bool local) {
  const ByteCount columns = run_bytes / item_bytes;
  const ByteCount rows = wanted_bytes / run_bytes;  // of each rank
  nlohmann::ordered_json held;
  nlohmann::ordered_json wanted;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto first_row = [&](int of) { return static_cast<ByteCount>(of) * rows; };
    const int source = local ? rank : (rank + 1) % ranks;
    held[std::to_string(rank)] = {{{first_row(rank), 0}, {rows, 2 * columns}}};
    wanted[std::to_string(rank)] = {{{first_row(source), 0}, {rows, columns}}};
  }
  const auto side = [&](const nlohmann::ordered_json& boxes) -> nlohmann::ordered_json {
    return {{"ranks", ranks}, {"rules", {{"*", {{"boxes", boxes}}}}}};
  };
  const nlohmann::ordered_json text{
      {"name", fmt::format("{}runs of {} bytes", local ? "local " : "", run_bytes)},
      {"dtype", "f32"},
      {"states", {"master"}},
      {"tensors", {{{"fqn", "sweep"}, {"shape", {static_cast<ByteCount>(ranks) * rows, 2 * columns}}}}},
      {"source", side(held)},
      {"target", side(wanted)}};
  return text.dump();
}

std::string with_layers(const std::string& case_text, int layers) {
  const Case checked = parse_case(case_text);  // errors of the file as it is come first
  auto json = nlohmann::ordered_json::parse(case_text);
  json["layers"] = layers;
  return json.dump();
}

Measurement measurement_of(std::string case_text) {
  Measurement measurement;
  measurement.job = parse_case(case_text);
  measurement.case_text = std::move(case_text);
  return measurement;
}

}  // namespace shardwire::perf
