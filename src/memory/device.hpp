// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"
#include "shardwire/error.hpp"
#include "shardwire/types.hpp"
#include "support/descriptors.hpp"

// Interface for memory that the processor cannot access: it identifies such pointers and copies on devices. One
// implementation lies in src/memory/cuda, a module that is loaded on first use; another in tests/support, over ordinary
// memory, so that everything above is tested without a GPU.
namespace shardwire::memory {

/// Ordinal of a device; host memory has none.
inline constexpr int on_host = -1;

/// The driver's facts about the target of a pointer.
struct DeviceAllocation {
  int device = on_host;
  /// Of the whole allocation, or of the queried chunks mapped side by side.
  const std::byte* address = nullptr;
  ByteCount bytes = 0;
  std::uint32_t chunks = 1;
  std::uint64_t number = 0;     ///< unique: memory that is freed and allocated again gets a new number
  bool managed = false;         ///< migrates between host and device
  bool legacy_ipc = false;      ///< can be shared with another process of the host by a handle of 64 bytes
  bool descriptor_ipc = false;  ///< can be shared as file descriptors, one per chunk
  bool gpu_direct = false;      ///< NICs can read and write it, as far as the driver knows
  bool peer_access = true;      ///< enable_peer_access() opens it to other devices; else only devices it was mapped for

  bool operator==(const DeviceAllocation&) const = default;
};

/// Device facts for the `doctor` command.
struct DeviceDetails {
  std::string name{};
  ByteCount bytes = 0;
  std::string pci_address{};           ///< "0000:1b:00.0", as /sys has it
  std::vector<int> peers{};            ///< devices whose memory it can access
  bool gpu_direct = false;             ///< NICs can read and write its memory, as far as the driver knows
  bool dma_buf = false;                ///< its memory can be exported to NICs as dma-bufs
  double memory_bytes_per_second = 0;  ///< maximum, read and written together; 0: not known
};

/// Device memory exported for another process of the host to map: a handle for the whole allocation, or a descriptor
/// for each chunk that contains it.
struct DeviceExport {
  struct Chunk {
    ByteCount bytes = 0;
    support::Descriptor descriptor{};
  };
  std::vector<std::byte> handle{};  ///< 64 bytes; empty: chunks
  std::vector<Chunk> chunks{};      ///< side by side
  ByteCount offset = 0;             ///< of the exported memory in the mapping
  ByteCount bytes = 0;              ///< from there
};

/// Memory that a runtime has allocated. Its stream work must have ended before it is destroyed.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  [[nodiscard]] virtual std::byte* address() const = 0;
  [[nodiscard]] virtual ByteCount bytes() const = 0;
};

/// One strided copy on a device. Both sides are memory of that device, memory of another device that it may access, or
/// host memory of DeviceRuntime::allocate_host(). Borrowed until the stream has passed it.
struct DeviceCopy {
  StridedCopy copy;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
};

/// Sequential work of one device. Nothing here waits.
/// Threads: one at a time.
class DeviceStream {
 public:
  using Done = std::function<void(const std::optional<Error>& error)>;

  /// Waits for work under way.
  virtual ~DeviceStream() = default;
  /// Work queued from now on begins after the event (a cudaEvent_t) has happened. Errors: throws
  /// Error{invalid_argument} for an invalid event.
  virtual void wait(void* event) = 0;
  /// The event, of this device, happens once everything queued so far has ended. Errors: as wait().
  virtual void record(void* event) = 0;
  /// Writes zeros to memory of this device.
  virtual void clear(std::byte* address, ByteCount bytes) = 0;
  /// All copies in parallel, as one piece of work. The list is copied.
  virtual void copy(std::span<const DeviceCopy> copies) = 0;
  /// Writes the tree digests (memory/tree_digest.hpp) of what each copy would read, in order, to `digests`, which is
  /// borrowed until the stream has passed it.
  virtual void digest(std::span<const DeviceCopy> copies, std::span<Digest128> digests) = 0;
  /// `done` runs once, on a thread of the runtime, when everything queued so far has ended. It must not call the
  /// runtime.
  virtual void call_when_done(Done done) = 0;
  /// For libraries that queue their own work: the runtime's handle (a cudaStream_t). Null: it has none.
  [[nodiscard]] virtual void* native() const = 0;
};

/// Devices of one kind, as this process sees them.
/// Threads: any.
/// Errors: calls throw Error{out_of_resources} if memory is exhausted, Error{unsupported} if driver or device lack
///         support, Error{invalid_argument} for an unknown device, and Error{transport_failed} for a device that has
///         failed permanently: then everything on it fails, and host memory continues to work.
class DeviceRuntime {  // defined in the header: modules contain no object code of the library
 public:
  virtual ~DeviceRuntime() = default;
  /// For people: runtime and driver.
  [[nodiscard]] virtual std::string version() const = 0;
  [[nodiscard]] virtual int device_count() const = 0;
  /// For people.
  [[nodiscard]] virtual DeviceDetails details(int device) const = 0;
  /// The allocation that contains `address`; empty for host memory, pinned memory included. If it consists of chunks
  /// side by side, the result covers the chunks that hold `bytes` from `address`, or fewer if they end before; one byte
  /// selects one chunk. The same memory always gets the same number.
  /// Errors: throws Error{invalid_argument} for unmapped addresses, or for a device that this process does not see, and
  ///         Error{unsupported} for arrays.
  [[nodiscard]] virtual std::optional<DeviceAllocation> find(const void* address, ByteCount bytes = 1) const = 0;
  /// Content: undefined. Bytes: more than 0.
  virtual std::unique_ptr<DeviceMemory> allocate(int device, ByteCount bytes) = 0;
  /// Host memory that every device can copy to and from.
  virtual std::unique_ptr<DeviceMemory> allocate_host(ByteCount bytes) = 0;
  virtual std::unique_ptr<DeviceStream> open_stream(int device) = 0;
  /// Runs `work` with `device` current on this thread, and restores the thread's state: for libraries that use the
  /// current device.
  virtual void on_device(int device, const std::function<void()>& work) = 0;
  /// Whether this process already uses the device, so that memory of it costs no context.
  [[nodiscard]] virtual bool in_use(int device) const = 0;
  /// Call it before memory of a device, all of the range, is registered with NICs: from then on the caller's copies
  /// that look synchronous are synchronous.
  virtual void prepare_for_nics(const void* address, ByteCount bytes) = 0;
  /// Makes earlier NIC writes to memory of the device visible to work that its streams begin afterwards. Does nothing
  /// if the device guarantees that.
  virtual void flush_remote_writes(int device) = 0;
  /// Returns true if streams of `device` can access memory of `peer` from now on, provided
  /// DeviceAllocation::peer_access.
  virtual bool enable_peer_access(int device, int peer) = 0;
  /// For another process. Errors: throws Error{unsupported} for memory that cannot be exported, and
  /// Error{invalid_argument}
  ///         if not all of it is memory of one device.
  virtual DeviceExport export_memory(const void* address, ByteCount bytes) = 0;
  /// Memory exported by another process, mapped for streams of `device`, and of devices to which enable_peer_access()
  /// gives its memory, until it is destroyed; the exporter must keep it until then.
  virtual std::unique_ptr<DeviceMemory> import_memory(int device, const DeviceExport& exported) = 0;
};

/// The runtime of this process, or why there is none.
struct FoundRuntime {
  std::shared_ptr<DeviceRuntime> runtime;  ///< null: see why_not. owners: this process and its users
  std::string why_not;                     ///< for people
};
/// The first call loads it; later calls are cheap.
FoundRuntime device_runtime();
/// The same for a copy that needs it. Errors: throws Error{unsupported} with the reason if there is none.
std::shared_ptr<DeviceRuntime> require_device_runtime();
/// Whether device memory can exist at all: cheap, loads nothing. False until this process has loaded the driver's
/// library.
bool devices_in_use();
/// For tests: from now on `runtime` is the process's; null: the runtime that was found.
void use_device_runtime(std::shared_ptr<DeviceRuntime> runtime);

}  // namespace shardwire::memory
