// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "shardwire/export.hpp"
#include "shardwire/memory.hpp"
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
  grouped,    ///< rounds of a collective that all members take part in; in exchanges only
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

/// How the transport tcp asks a peer for bytes. What is asked for and has not come waits in the sockets' buffers: as long as
/// that fits into the caches, a byte costs the processors a third less (measured: 256 KiB beside 1 to 4 MiB).
struct TcpSettings {
  ByteCount request_bytes = 256u << 10;  ///< of one request; as many are under way as the network holds in a round trip
  int streams = 1;                       ///< to each peer

  bool operator==(const TcpSettings&) const = default;
};

/// Which copy kernels were the fastest on processors of one model.
struct FastestKernels {
  struct Entry {
    std::string run_bytes_class;  ///< what it was the fastest for: "runs to 1 KiB", "longer runs, digested"
    std::string kernel;           ///< a name as in SHARDWIRE_COPY_KERNEL

    bool operator==(const Entry&) const = default;
  };
  std::string processor{};  ///< as the system names it; empty: not known, and no process begins with these kernels
  std::vector<Entry> entries{};

  bool operator==(const FastestKernels&) const = default;
};

/// What each way costs over each transport and in each kind of memory; what a restore chooses ways by. Transports go by their
/// names: "loopback", "shm", "tcp", "ucx", "libfabric", "nccl", or any other, which is as fast as a network that is not
/// known. `shardwire perf --calibrate` measures one.
/// Way::local needs no transport: its cost is the same under every name, and is called "local" in files.
/// MemoryKind::detect stands for host.
class CostModel {
 public:
  /// Built-in costs: what a current server does, roughly. Calibrate where it matters.
  CostModel() = default;

  [[nodiscard]] WayCost at(std::string_view transport, MemoryKind memory, Way way) const;
  void set(std::string_view transport, MemoryKind memory, Way way, const WayCost& cost);

  [[nodiscard]] const TcpSettings& tcp() const { return tcp_; }
  void set_tcp(const TcpSettings& tcp) { tcp_ = tcp; }

  /// Sessions with this model spare themselves finding out what this says, on the same processor.
  [[nodiscard]] const FastestKernels& kernels() const { return kernels_; }
  void set_kernels(FastestKernels kernels) { kernels_ = std::move(kernels); }

  bool operator==(const CostModel&) const = default;

 private:
  // Only what is not as built in, so that models that say the same are equal.
  std::map<std::tuple<std::string, MemoryKind, Way>, WayCost> costs_;
  TcpSettings tcp_;
  FastestKernels kernels_;
};

/// Reads a calibration file: JSON, {"format": "shardwire costs 2", "machine": "...", "processor": "...", "costs":
/// [{"transport", "memory", "way", "latency_seconds", "run_seconds", "bytes_per_second"}, ..], "kernels":
/// [{"run_bytes_class", "kernel"}, ..], "tcp": {"request_bytes", "streams"}}; memory is "host" or "cuda". What it does not name
/// is as built in. Files of version 1 are read as well: their entries have a "reach" instead of transport and memory, which
/// stands for host memory and these transports: "process" for local and loopback, "host" for shm and ucx, "network" for
/// tcp, ucx and libfabric; where host and network disagree, network counts for ucx.
/// Errors: throws Error{invalid_argument} naming the file and what is wrong with it.
CostModel load_costs(const std::string& path);
struct MeasuredCost {
  std::string transport;
  MemoryKind memory = MemoryKind::host;
  Way way{};
  WayCost cost;
};
/// Replaces the file at once: readers see the old or the new one. Written is what is given, nothing that is built in;
/// `machine` is for people. Errors: throws Error{out_of_resources}.
void save_costs(const std::string& path, const std::string& machine, const std::vector<MeasuredCost>& measured,
                const FastestKernels& kernels = {}, const std::optional<TcpSettings>& tcp = std::nullopt);

}  // namespace shardwire
SHARDWIRE_API_END
