// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/synthetic.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace shardwire::perf {

namespace {

constexpr ByteCount item_bytes = 4;

}  // namespace

std::string synthetic_case(int ranks, ByteCount run_bytes, ByteCount wanted_bytes, bool local) {
  std::vector<Pair> pairs;
  for (int rank = 0; rank < ranks; ++rank) pairs.push_back({local ? rank : (rank + 1) % ranks, rank});
  return pairs_case(fmt::format("{}runs of {} bytes", local ? "local " : "", run_bytes), ranks, pairs, run_bytes,
                    wanted_bytes);
}

std::string pairs_case(const std::string& name, int ranks, std::span<const Pair> pairs, ByteCount run_bytes,
                       ByteCount wanted_bytes) {
  const ByteCount columns = run_bytes / item_bytes;
  const ByteCount rows = wanted_bytes / run_bytes;  // of each rank
  nlohmann::ordered_json held = nlohmann::ordered_json::object();
  nlohmann::ordered_json wanted = nlohmann::ordered_json::object();
  for (const Pair& pair : pairs) {
    const ByteCount first_row = static_cast<ByteCount>(pair.source) * rows;
    held[std::to_string(pair.source)] = {{{first_row, 0}, {rows, 2 * columns}}};
    wanted[std::to_string(pair.target)] = {{{first_row, 0}, {rows, columns}}};
  }
  const auto side = [&](const nlohmann::ordered_json& boxes) -> nlohmann::ordered_json {
    return {{"ranks", ranks}, {"rules", {{"*", {{"boxes", boxes}}}}}};
  };
  const nlohmann::ordered_json text{
      {"name", name},
      {"dtype", "f32"},
      {"states", {"master"}},
      {"tensors", {{{"fqn", "sweep"}, {"shape", {static_cast<ByteCount>(ranks) * rows, 2 * columns}}}}},
      {"source", side(held)},
      {"target", side(wanted)}};
  return text.dump();
}

std::vector<std::vector<Pair>> sets_of_pairs(int ranks) {
  std::vector<std::vector<Pair>> sets;
  for (int source = 0; source < ranks; ++source) {
    for (int target = 0; target < ranks; ++target) {
      if (source != target) sets.push_back({{source, target}});
    }
  }
  const int half = ranks / 2;
  if (ranks < 4 || ranks % 2 != 0) return sets;
  std::vector<Pair> up;
  std::vector<Pair> down;
  for (int rank = 0; rank < half; ++rank) {
    up.push_back({rank, rank + half});
    down.push_back({rank + half, rank});
  }
  sets.push_back(std::move(up));
  sets.push_back(std::move(down));
  return sets;
}

std::string with_layers(const std::string& case_text, int layers) {
  const Case checked = parse_case(case_text);  // errors of the original file come first
  auto json = nlohmann::ordered_json::parse(case_text);
  json["layers"] = layers;
  return json.dump();
}

Measurement measurement_of(std::string case_text) {
  Measurement measurement;
  measurement.job = parse_case(case_text);
  measurement.needed_bytes = needed_bytes(measurement.job);
  measurement.case_text = std::move(case_text);
  return measurement;
}

}  // namespace shardwire::perf
