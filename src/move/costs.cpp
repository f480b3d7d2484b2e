// SPDX-License-Identifier: Apache-2.0
#include "shardwire/costs.hpp"

#include <algorithm>
#include <array>
#include <iterator>

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

// Orders of magnitude that hold on most servers; the crossings between ways are what matters. Of host memory; what differs for
// memory of devices is below.
struct BuiltIn {
  std::string_view transport;  // empty: every one that is not named before
  Way way;
  WayCost cost;
};
constexpr BuiltIn table[] = {
    // What is mapped is copied without a system call: never worse than asking the kernel to read it.
    {"shm", Way::mapped, {.latency_seconds = 1e-6, .run_seconds = 15e-9, .bytes_per_second = 13e9}},
    // No hardware reads memory of another process: a system call does, which touches each run twice.
    {"shm", Way::read, {.latency_seconds = 3e-6, .run_seconds = 250e-9, .bytes_per_second = 12e9}},
    {"shm", Way::over_read, {.latency_seconds = 3e-6, .run_seconds = 15e-9, .bytes_per_second = 5.5e9}},
    // Messages within a process or a host spare the network stack: they are worth their number from a few kilobytes on.
    {"shm", Way::straight, {.latency_seconds = 30e-6, .run_seconds = 1.2e-6, .bytes_per_second = 9e9}},
    {"shm", Way::packed, {.latency_seconds = 30e-6, .run_seconds = 60e-9, .bytes_per_second = 3.3e9}},
    {"loopback", Way::straight, {.latency_seconds = 30e-6, .run_seconds = 1.2e-6, .bytes_per_second = 9e9}},
    {"loopback", Way::packed, {.latency_seconds = 30e-6, .run_seconds = 60e-9, .bytes_per_second = 3.3e9}},
    // Runs are ranges of one message, which the kernel gathers and scatters: each costs it a little, but is no message.
    {"tcp", Way::straight, {.latency_seconds = 50e-6, .run_seconds = 40e-9, .bytes_per_second = 6e9}},
    {"tcp", Way::packed, {.latency_seconds = 50e-6, .run_seconds = 30e-9, .bytes_per_second = 2.5e9}},
    // A request and an answer of libfabric's own for each run, on most networks that it is used for.
    {"libfabric", Way::read, {.latency_seconds = 20e-6, .run_seconds = 1.5e-6, .bytes_per_second = 10e9}},
    {"libfabric", Way::over_read, {.latency_seconds = 20e-6, .run_seconds = 15e-9, .bytes_per_second = 5e9}},
    {"", Way::local, {.latency_seconds = 1e-6, .run_seconds = 12e-9, .bytes_per_second = 10e9}},
    {"", Way::mapped, {.latency_seconds = 1e-6, .run_seconds = 15e-9, .bytes_per_second = 9e9}},
    {"", Way::read, {.latency_seconds = 3e-6, .run_seconds = 250e-9, .bytes_per_second = 20e9}},
    {"", Way::over_read, {.latency_seconds = 3e-6, .run_seconds = 15e-9, .bytes_per_second = 7e9}},
    {"", Way::straight, {.latency_seconds = 60e-6, .run_seconds = 15e-6, .bytes_per_second = 5e9}},
    {"", Way::packed, {.latency_seconds = 60e-6, .run_seconds = 30e-9, .bytes_per_second = 2.5e9}},
    {"", Way::grouped, {.latency_seconds = 100e-6, .run_seconds = 30e-9, .bytes_per_second = 2.5e9}},
};

// A launch, and the word that it is over; runs are copied side by side by thousands of threads. How many bytes in a second the device
// says (device_limits.hpp), so none is a limit here.
constexpr WayCost copied_by_device{.latency_seconds = 20e-6, .run_seconds = 1e-9, .bytes_per_second = 1e12};

WayCost built_in(std::string_view transport, MemoryKind memory, Way way) {
  const auto* const found = std::find_if(std::begin(table), std::end(table), [&](const BuiltIn& one) {
    return one.way == way && (one.transport.empty() || one.transport == transport);
  });
  WayCost cost = found->cost;  // every way has a line without a name
  if (memory != MemoryKind::cuda) return cost;
  if (way == Way::local || way == Way::mapped) return copied_by_device;
  // By way of pinned slots, which a device fills or empties.
  if (way == Way::packed || way == Way::over_read) cost.latency_seconds += copied_by_device.latency_seconds;
  return cost;
}

std::tuple<std::string, MemoryKind, Way> key_of(std::string_view transport, MemoryKind memory, Way way) {
  return {std::string(way == Way::local ? "local" : transport),
          memory == MemoryKind::detect ? MemoryKind::host : memory, way};
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

WayCost CostModel::at(std::string_view transport, MemoryKind memory, Way way) const {
  const auto found = costs_.find(key_of(transport, memory, way));
  return found == costs_.end() ? built_in(transport, memory, way) : found->second;
}

void CostModel::set(std::string_view transport, MemoryKind memory, Way way, const WayCost& cost) {
  if (cost == built_in(transport, memory, way)) {
    costs_.erase(key_of(transport, memory, way));
  } else {
    costs_[key_of(transport, memory, way)] = cost;
  }
}

}  // namespace shardwire
