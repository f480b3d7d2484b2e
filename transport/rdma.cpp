// SPDX-License-Identifier: Apache-2.0
#include "transport/rdma.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

namespace shardwire::transport {
namespace {

std::set<std::string> entries(const std::filesystem::path& folder) {
  std::set<std::string> out;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) out.insert(entry.path().filename());
  return out;
}

template <typename Seen>
void each_port(const std::string& folder, Seen seen) {
  for (const std::string& device : entries(folder)) {
    const std::filesystem::path ports = std::filesystem::path(folder) / device / "ports";
    for (const std::string& port : entries(ports)) {
      std::ifstream file(ports / port / "state");  // "4: ACTIVE"
      std::string number;
      std::string state;
      file >> number >> state;
      seen(device, port, state);
    }
  }
}

std::vector<std::string_view> words_of(std::string_view list) {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) words.push_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return words;
}

}  // namespace

Viability probe_rdma(const std::string& folder) {
  std::set<std::string> active;
  std::set<std::string> others;
  each_port(folder, [&](const std::string& device, const std::string& port, const std::string& state) {
    if (state == "ACTIVE") {
      active.insert(device);
    } else {
      others.insert(fmt::format("port {} of {} is {}", port, device, state.empty() ? "in no known state" : state));
    }
  });
  if (!active.empty()) return {true, fmt::format("{}", fmt::join(active, ", "))};
  if (others.empty()) return {false, fmt::format("no RDMA device (nothing under {})", folder)};
  return {false, fmt::format("no RDMA device with an active port ({})", fmt::join(others, ", "))};
}

std::vector<std::string> active_ports(const std::string& folder) {
  std::vector<std::string> ports;
  each_port(folder, [&](const std::string& device, const std::string& port, const std::string& state) {
    if (state == "ACTIVE") ports.push_back(fmt::format("{}:{}", device, port));
  });
  return ports;
}

std::string reading_transports(std::string_view chosen) {
  struct Known {
    std::string_view name;
    std::string_view also[2];  // names that UCX has for it beside "ib" and "all"
  };
  constexpr Known known[] = {{"rc_v", {"rc_verbs", "rc"}}, {"rc_x", {"rc_mlx5", "rc"}}, {"dc_x", {"dc_mlx5", "dc"}}};
  // "^" stands before a list of those that are not wanted.
  const bool all_but = chosen.starts_with('^');
  if (all_but) chosen.remove_prefix(1);
  const std::vector<std::string_view> words = words_of(chosen);
  std::string left;
  for (const Known& one : known) {
    const bool named = std::ranges::any_of(words, [&](std::string_view word) {
      return word == one.name || word == one.also[0] || word == one.also[1] || word == "ib" || word == "all";
    });
    if (named == all_but && !(words.empty() && !all_but)) continue;
    left += fmt::format("{}{}", left.empty() ? "" : ",", one.name);
  }
  return left;
}

std::vector<std::string> chosen_ports(std::vector<std::string> ports, std::string_view chosen) {
  const bool all_but = chosen.starts_with('^');
  if (all_but) chosen.remove_prefix(1);
  const std::vector<std::string_view> words = words_of(chosen);
  if (words.empty() || std::ranges::find(words, "all") != words.end()) return ports;
  std::erase_if(ports, [&](const std::string& port) {
    const bool named = std::ranges::any_of(
        words, [&](std::string_view word) { return word == port || word == port.substr(0, port.rfind(':')); });
    return named == all_but;
  });
  return ports;
}

}  // namespace shardwire::transport
