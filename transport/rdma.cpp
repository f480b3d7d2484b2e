// SPDX-License-Identifier: Apache-2.0
#include "transport/rdma.hpp"

#include <fmt/format.h>

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

}  // namespace

Viability probe_rdma(const std::string& folder) {
  std::set<std::string> active;
  std::set<std::string> others;
  for (const std::string& device : entries(folder)) {
    const std::filesystem::path ports = std::filesystem::path(folder) / device / "ports";
    for (const std::string& port : entries(ports)) {
      std::ifstream file(ports / port / "state");  // "4: ACTIVE"
      std::string number;
      std::string state;
      file >> number >> state;
      if (state == "ACTIVE") {
        active.insert(device);
      } else {
        others.insert(fmt::format("port {} of {} is {}", port, device, state.empty() ? "in no known state" : state));
      }
    }
  }
  if (!active.empty()) return {true, fmt::format("{}", fmt::join(active, ", "))};
  if (others.empty()) return {false, fmt::format("no RDMA device (nothing under {})", folder)};
  return {false, fmt::format("no RDMA device with an active port ({})", fmt::join(others, ", "))};
}

}  // namespace shardwire::transport
