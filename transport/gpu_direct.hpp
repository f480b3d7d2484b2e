// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "memory/device.hpp"
#include "transport/memory.hpp"

// Whether NICs access GPU memory directly (GPUDirect RDMA), and if not, why: the one place for all fabrics and for
// `doctor`. Kernel facts are read below `root`.
namespace shardwire::transport {

/// Kernel support of this host.
struct PeerMemory {
  bool nvidia = false;  ///< the driver of NVIDIA GPUs is loaded
  bool module = false;  ///< nvidia_peermem, or its old name nv_peer_mem
};
PeerMemory peer_memory(const std::string& root = {});

/// Why NICs cannot reach memory of the device. Empty: kernel and driver report no obstacle.
std::string why_no_gpu_direct(const memory::DeviceDetails& device, const PeerMemory& host);
/// A hint that an IOMMU translates traffic between NICs and this device. Empty: it does not, or this is unknown.
std::string iommu_hint(const std::string& pci_address, const std::string& root = {});

/// Why this UCX version does not read into GPU memory. Empty: it does. `cuda`: its contexts support CUDA memory.
std::string why_no_gpus_in_ucx(unsigned major, unsigned minor, bool cuda);
/// Whether this UCX version registers allocations of several chunks. Older versions silently omit chunks.
bool ucx_takes_chunks(unsigned major, unsigned minor);

/// The kind that a library detects for memory it has registered.
enum class TakenFor : std::uint8_t { host, cuda, other };
/// Why that detection rules the memory out. Empty: the detection is correct.
std::string why_mistaken(const MemoryPlace& place, TakenFor taken_for);

/// Why this allocation is not registered with NICs, regardless of its device. Empty: it is. `takes_chunks`: the fabric
/// registers allocations that were mapped in chunks.
std::string why_not_for_nics(const memory::DeviceAllocation& allocation, bool takes_chunks);

/// The devices whose memory the NICs of a fabric reach, judged by kernel, driver and library, and by a trial
/// registration when a device that this process uses is first queried.
/// Threads: any.
class GpuDirect {
 public:
  struct Setup {
    memory::FoundRuntime (*find_devices)() = nullptr;
    std::string why_never{};  ///< reason that lies in the fabric's library; empty: it supports GPU memory
    bool takes_chunks = false;
    /// Registers memory as the fabric does for transfers, then deregisters it. Errors: throws Error if that fails.
    std::function<void(const Memory& memory)> try_with{};
    PeerMemory host = peer_memory();
    std::string root{};  ///< for hints
  };
  explicit GpuDirect(Setup setup) : setup_(std::move(setup)) {}

  /// Why NICs do not reach the device; empty: they do. An ordinal that this process does not have belongs to another
  /// process and is judged like the first device.
  std::string why_not(int device);
  /// Why NICs do not reach this allocation, for reasons other than its device. Empty: none is known. Makes no trial.
  std::string why_refused(const memory::DeviceAllocation& allocation);
  /// Number of the allocation that contains the memory. Memory that is freed and allocated again gets a new number. 0:
  /// not device memory.
  [[nodiscard]] std::uint64_t number_of(const Memory& memory) const;
  /// Prepares memory, then calls `with` to register it; `with` throws Error if the fabric refuses. After a refusal all
  /// memory of the device takes another path; memory that is unsuitable for NICs does so alone.
  /// Errors: throws Error{unsupported} for both cases, and if the memory does not exist (any more).
  void register_memory(const Memory& memory, const std::function<void()>& with);
  /// The same for the whole allocation that contains `range`, so that no memory of another owner is registered.
  /// Errors: as before, but Error{invalid_argument} if the memory does not exist (any more).
  memory::DeviceAllocation register_around(const Memory& range, const std::function<void(const Memory& whole)>& with);

 private:
  [[nodiscard]] std::shared_ptr<memory::DeviceRuntime> require_reached(int device);
  void register_found(memory::DeviceRuntime& runtime, const memory::DeviceAllocation& allocation, const Memory& memory,
                      const std::function<void()>& with);
  [[nodiscard]] std::string judge(memory::DeviceRuntime& runtime, int device) const;
  [[nodiscard]] std::string try_out(memory::DeviceRuntime& runtime, int device);

  const Setup setup_;
  std::mutex mutex_;
  std::map<int, std::string> judged_;  // guarded by mutex_
  std::map<int, std::string> tried_;   // guarded by mutex_
  // Memory used for trials, by device; freeing it would wait for the device. Guarded by mutex_.
  std::map<int, std::unique_ptr<memory::DeviceMemory>> trials_;
  std::map<std::uint64_t, std::string> refused_;  // by allocation number; guarded by mutex_
};

}  // namespace shardwire::transport
