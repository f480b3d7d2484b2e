// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
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

/// Transfer method of a piece. Reports, calibration files and SHARDWIRE_METHOD use these names.
enum class Method : std::uint8_t {
  local,        ///< source and target in one process: strided copy
  mapped,       ///< strided copy out of peer memory that is mapped here; no staging, no work for the peer
  read,         ///< one-sided read by hardware: one operation for each run
  sieved_read,  ///< one-sided reads across the gaps between runs, into staging; gap bytes are counted as overread
  zcopy,        ///< one message for each run, sent from its place in source memory to its place in target memory
  packed,       ///< runs collected into messages, through staging on both sides
  collective,   ///< collective rounds with all members; in exchanges only
};
inline constexpr std::size_t method_count = 7;

/// Distance to a peer.
enum class Reach : std::uint8_t {
  process,  ///< this process
  host,     ///< another process of this host, over shared memory
  network,  ///< anything else
};
inline constexpr std::size_t reach_count = 3;

/// Why bytes do not take a better path. A text beside it has the details. Later versions may add reasons.
enum class FallbackReason : std::uint8_t {
  none,             ///< no better path is known
  by_design,        ///< the transport does no better: a NIC maps no memory, tcp only carries messages
  other_host,       ///< shared memory and local sockets reach one host only
  not_in_arena,     ///< the source's memory is in no arena, so that it is read or sent, not mapped
  not_connected,    ///< nothing needed it
  left_out,         ///< SessionOptions::transport, or a variable of UCX or libfabric, names others
  not_built,        ///< this build of the library is without it
  library_missing,  ///< a library that it needs cannot be loaded
  library_unfit,    ///< that library lacks what is needed: a newer version, or an option of its build
  no_device,        ///< there is no fit device: no NIC with an active port, no GPU that this process uses
  memlock,          ///< this process may pin too little memory (ulimit -l)
  peer_without,     ///< the peer has not opened it, or does not let itself be read
  other_domain,     ///< the peer's has another version, or is in another network
  other_namespace,  ///< the peer is in another namespace of processes or of networks
  other_user,       ///< the peer is a process of another user
  undumpable,       ///< the peer is not dumpable (prctl PR_SET_DUMPABLE)
  ptrace_scope,     ///< Yama forbids to attach to the peer (kernel.yama.ptrace_scope)
  seccomp,          ///< a seccomp filter forbids process_vm_readv
  not_permitted,    ///< another rule of the kernel forbids to attach to the peer
  no_gpu_direct,    ///< memory of a GPU passes host memory, because NIC, driver or transport do not reach it
  no_peer_access,   ///< memory of a GPU passes host memory, because another GPU of this process cannot access it
  failed,           ///< connecting, registering or reading failed
};
inline constexpr std::size_t fallback_reason_count = 22;

std::string_view to_string(Method method);
std::string_view to_string(Reach reach);
std::string_view to_string(FallbackReason reason);
/// Empty for an unknown name.
std::optional<Method> method_from(std::string_view name);

/// Cost of one method: linear in bytes and runs. A run is the longest contiguous byte range on both sides.
struct MethodCost {
  double latency_seconds = 0;  ///< from the first request to its first byte; counted once per peer
  double run_seconds = 0;      ///< added by each run
  double bytes_per_second = 1;

  [[nodiscard]] double seconds(ByteCount bytes, ByteCount runs) const {
    return latency_seconds + static_cast<double>(runs) * run_seconds + static_cast<double>(bytes) / bytes_per_second;
  }
  bool operator==(const MethodCost&) const = default;
};

namespace detail {
struct Tuning;
}

/// Cost of each method per transport and kind of memory. Restores choose methods by it. Transports have the names
/// "loopback", "shm", "tcp", "ucx", "libfabric" and "nccl"; any other name gets the costs of an unknown network.
/// "tcp_encrypted" is `tcp` under SessionOptions::encrypt_payload: messages whose cost is not set have the cost of `tcp` and the
/// time of encryption. `shardwire perf --calibrate` measures a model. Method::local needs no transport: its cost is the same under every name,
/// and files call it "local". MemoryKind::detect stands for host.
class CostModel {
 public:
  /// Built-in costs: rough figures of a current server. Calibrate if the choice of methods matters.
  CostModel() = default;

  [[nodiscard]] MethodCost at(std::string_view transport, MemoryKind memory, Method method) const;
  void set(std::string_view transport, MemoryKind memory, Method method, const MethodCost& cost);

  /// Whether at() returns the same for every argument, and the other settings are the same.
  bool operator==(const CostModel& other) const;

  /// Internal: the other settings of a calibration file, for tcp requests and streams and for copy kernels.
  [[nodiscard]] const detail::Tuning& tuning() const;
  void set_tuning(const detail::Tuning& tuning);

 private:
  std::map<std::tuple<std::string, MemoryKind, Method>, MethodCost> costs_;  // as set; all others are built in
  std::shared_ptr<const detail::Tuning> tuning_;  // owners: this model and its copies; null: as built in
};

/// Reads a calibration file: JSON, {"format": "shardwire costs 2", "machine": "...", "processor": "...", "costs":
/// [{"transport", "memory", "method", "latency_seconds", "run_seconds", "bytes_per_second"}, ..], "kernels":
/// [{"run_bytes_class", "kernel"}, ..], "tcp": {"request_bytes", "streams"}}; memory is "host" or "cuda". Missing
/// entries keep their built-in values.
/// Errors: throws Error{invalid_argument} naming the file and the fault.
CostModel load_costs(const std::string& path);
struct MeasuredCost {
  std::string transport;
  MemoryKind memory = MemoryKind::host;
  Method method{};
  MethodCost cost;
};
/// Replaces the file atomically: readers see the old or the new one. Writes only `measured`, no built-in costs;
/// `machine` is for people. Errors: throws Error{out_of_resources}.
void save_costs(const std::string& path, const std::string& machine, const std::vector<MeasuredCost>& measured);

}  // namespace shardwire
SHARDWIRE_API_END
