// SPDX-License-Identifier: Apache-2.0
#include "shardwire/costs.hpp"

#include <algorithm>

namespace shardwire {

namespace {

constexpr std::array<std::string_view, way_count> way_names{"local",    "mapped", "read",   "over_read",
                                                            "straight", "packed", "grouped"};
constexpr std::array<std::string_view, reach_count> reach_names{"process", "host", "network"};

template <typename Enum, std::size_t N>
std::optional<Enum> find(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto* const found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

}  // namespace

std::string_view to_string(Way way) {
  return way_names[static_cast<std::size_t>(way)];
}
std::string_view to_string(Reach reach) {
  return reach_names[static_cast<std::size_t>(reach)];
}
std::optional<Way> way_from(std::string_view name) {
  return find<Way>(way_names, name);
}
std::optional<Reach> reach_from(std::string_view name) {
  return find<Reach>(reach_names, name);
}

CostModel::CostModel() {
  // Orders of magnitude that hold on most servers; the crossings between ways are what matters.
  for (const Reach reach : {Reach::process, Reach::host, Reach::network}) {
    at(reach, Way::local) = {.latency_seconds = 1e-6, .run_seconds = 12e-9, .bytes_per_second = 10e9};
    at(reach, Way::mapped) = {.latency_seconds = 1e-6, .run_seconds = 15e-9, .bytes_per_second = 9e9};
    at(reach, Way::read) = {.latency_seconds = 3e-6, .run_seconds = 250e-9, .bytes_per_second = 20e9};
    at(reach, Way::over_read) = {.latency_seconds = 3e-6, .run_seconds = 15e-9, .bytes_per_second = 7e9};
    at(reach, Way::straight) = {.latency_seconds = 60e-6, .run_seconds = 15e-6, .bytes_per_second = 5e9};
    at(reach, Way::packed) = {.latency_seconds = 60e-6, .run_seconds = 30e-9, .bytes_per_second = 2.5e9};
    at(reach, Way::grouped) = {.latency_seconds = 100e-6, .run_seconds = 30e-9, .bytes_per_second = 2.5e9};
  }
  // Messages within a host spare the network stack: they are worth their number from a few kilobytes on.
  at(Reach::host, Way::straight) = {.latency_seconds = 30e-6, .run_seconds = 1.2e-6, .bytes_per_second = 9e9};
  at(Reach::host, Way::packed) = {.latency_seconds = 30e-6, .run_seconds = 60e-9, .bytes_per_second = 3.3e9};
}

}  // namespace shardwire
