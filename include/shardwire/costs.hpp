// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/export.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// How the bytes of a piece are moved. The names in reports, calibration files and SHARDWIRE_WAY.
enum class Way : std::uint8_t {
  local,      ///< source and target in one process: strided copy
  mapped,     ///< strided copy out of a peer's memory that is mapped here; no staging, no work for the peer
  read,       ///< one-sided read by hardware: one operation for each run
  over_read,  ///< one-sided reads across the gaps between runs, into staging; the bytes of the gaps are counted as extra
  straight,   ///< one message for each run, sent from where it lies into where it belongs
  packed,     ///< runs collected into messages, through staging on both sides
  grouped,    ///< rounds of a collective that all members take part in; no transport of this version offers it
};
inline constexpr std::size_t way_count = 7;

/// How far away a peer is.
enum class Reach : std::uint8_t {
  process,  ///< this process
  host,     ///< another process of this host, over shared memory
  network,  ///< anything else
};
inline constexpr std::size_t reach_count = 3;

std::string_view to_string(Way way);
std::string_view to_string(Reach reach);
/// Empty for a name that is none.
std::optional<Way> way_from(std::string_view name);
std::optional<Reach> reach_from(std::string_view name);

/// What one way costs: a straight line over bytes and runs. A run is the longest contiguous byte range on both sides.
struct WayCost {
  double latency_seconds = 0;  ///< from the first request to its first byte; once per peer, since many are in flight
  double run_seconds = 0;      ///< added by each run
  double bytes_per_second = 1;

  [[nodiscard]] double seconds(ByteCount bytes, ByteCount runs) const {
    return latency_seconds + static_cast<double>(runs) * run_seconds + static_cast<double>(bytes) / bytes_per_second;
  }
  bool operator==(const WayCost&) const = default;
};

/// Costs of every way at every reach; what a restore chooses ways by. `shardwire perf --calibrate` measures one.
class CostModel {
 public:
  /// The built-in one: what a current server does, roughly. Calibrate where it matters.
  CostModel();

  [[nodiscard]] const WayCost& at(Reach reach, Way way) const { return costs_[index(reach, way)]; }
  WayCost& at(Reach reach, Way way) { return costs_[index(reach, way)]; }
  bool operator==(const CostModel&) const = default;

 private:
  static std::size_t index(Reach reach, Way way) {
    return static_cast<std::size_t>(reach) * way_count + static_cast<std::size_t>(way);
  }
  std::array<WayCost, reach_count * way_count> costs_{};
};

/// Reads a calibration file: JSON, {"format": "shardwire costs 1", "machine": "...", "costs": [{"reach", "way",
/// "latency_seconds", "run_seconds", "bytes_per_second"}, ..]}. What it does not name keeps its built-in cost.
/// Errors: throws Error{invalid_argument} naming the file and what is wrong with it.
CostModel load_costs(const std::string& path);
struct MeasuredCost {
  Reach reach{};
  Way way{};
  WayCost cost;
};
/// Replaces the file at once: readers see the old or the new one. Only `measured` entries are written; `machine` is for
/// people. Errors: throws Error{out_of_resources}.
void save_costs(const std::string& path, const std::string& machine, const std::vector<MeasuredCost>& measured);

}  // namespace shardwire
SHARDWIRE_API_END
