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

// Whether NICs read and write memory of GPUs by themselves (GPUDirect RDMA), and why not: the one place for all fabrics and for
// doctor. What the kernel says is read below `root`.
namespace shardwire::transport {

/// What the kernel of this host has for it.
struct PeerMemory {
  bool nvidia = false;  ///< the driver of NVIDIA GPUs
  bool module = false;  ///< nvidia_peermem, or nv_peer_mem as it was called
};
PeerMemory peer_memory(const std::string& root = {});

/// Why NICs cannot reach memory of the device; empty: as far as kernel and driver know, they can.
std::string why_no_gpu_direct(const memory::DeviceDetails& device, const PeerMemory& host);
/// That what NICs and this device send each other is translated on the way; empty: it is not, or nobody says.
std::string iommu_hint(const std::string& pci_address, const std::string& root = {});

/// Why a UCX of this version does not read into memory of GPUs; empty: it does. `cuda`: its contexts know such memory.
std::string why_no_gpus_in_ucx(unsigned major, unsigned minor, bool cuda);
/// Whether a UCX of this version registers allocations of several chunks: older ones leave them out without a word.
bool ucx_takes_chunks(unsigned major, unsigned minor);

/// What a library takes memory for that it has registered.
enum class TakenFor : std::uint8_t { host, cuda, other };
/// Why that rules the memory out; empty: it is what it is.
std::string why_mistaken(const MemoryPlace& place, TakenFor taken_for);

/// Why NICs are not shown this allocation, whatever the others of its device are; empty: they are.
/// `takes_chunks`: the fabric registers allocations that were mapped piece by piece.
std::string why_not_for_nics(const memory::DeviceAllocation& allocation, bool takes_chunks);

/// Which devices' memory the NICs of a fabric reach: by what kernel, driver and library say, and by registering some of it when a
/// device that this process works with is first asked about.
/// Threads: any.
class GpuDirect {
 public:
  struct Setup {
    memory::FoundRuntime (*find_devices)() = nullptr;
    std::string why_never{};  ///< of the fabric's library; empty: it knows memory of GPUs
    bool takes_chunks = false;
    /// Registers memory for whatever the fabric does with it, and lets it go. Errors: throws Error where it cannot.
    std::function<void(const Memory& memory)> try_with{};
    PeerMemory host = peer_memory();
    std::string root{};  ///< for hints
  };
  explicit GpuDirect(Setup setup) : setup_(std::move(setup)) {}

  /// Why not; empty: they do. An ordinal that this process does not have is another one's, and judged as the first is.
  std::string why_not(int device);
  /// Why not this allocation, where its device is none of the reasons; empty: nothing is known against it. Asks nobody.
  std::string why_refused(const memory::DeviceAllocation& allocation);
  /// Of the allocation that the memory lies in: what was freed and taken again has another one. 0: it is on no device.
  [[nodiscard]] std::uint64_t number_of(const Memory& memory) const;
  /// Prepares memory, then has the fabric register it: `with` does that, and throws Error where it is not taken. Then all memory of
  /// the device goes another way from now on; what is no memory for NICs does so alone.
  /// Errors: throws Error{unsupported} for both, and where there is no such memory (any more).
  void register_memory(const Memory& memory, const std::function<void()>& with);
  /// The same for all of the allocation that `range` lies in, so that nothing is registered that is somebody else's.
  /// Errors: as before, but Error{invalid_argument} where there is no such memory (any more).
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
  std::map<int, std::string> tried_;   // the same
  // What was tried with, by device: giving it back would wait for the device. Guarded by mutex_.
  std::map<int, std::unique_ptr<memory::DeviceMemory>> trials_;
  std::map<std::uint64_t, std::string> refused_;  // allocations by their numbers; the same
};

}  // namespace shardwire::transport
