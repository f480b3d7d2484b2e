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

#include "memory/device_copy/value_box.hpp"
#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"
#include "shardwire/error.hpp"
#include "shardwire/types.hpp"
#include "support/descriptors.hpp"

// What memory that the processor cannot load from needs: somebody who knows such pointers, and who copies there. One
// implementation lies in src/memory/cuda, a module that is loaded when a process first has a use for it; another one in
// tests/support, over ordinary memory, so that everything above is tested where there is no GPU.
namespace shardwire::memory {

/// Ordinal of a device; host memory has none.
inline constexpr int on_host = -1;

/// What a pointer points into, as the driver tells it.
struct DeviceAllocation {
  int device = on_host;
  /// Of the whole allocation, or of the chunks mapped side by side that were asked about.
  const std::byte* address = nullptr;
  ByteCount bytes = 0;
  std::uint32_t chunks = 1;
  std::uint64_t number = 0;     ///< of this allocation: memory that was freed and taken again has another one
  bool managed = false;         ///< migrates between host and device
  bool legacy_ipc = false;      ///< can be handed to another process of the host by a handle of 64 bytes
  bool descriptor_ipc = false;  ///< can be handed over as file descriptors, one for each chunk
  bool gpu_direct = false;      ///< NICs can read and write there, as far as the driver knows
  bool peer_access = true;      ///< enable_peer_access() opens it to other devices; else only who has mapped it can

  bool operator==(const DeviceAllocation&) const = default;
};

/// What doctor tells of a device.
struct DeviceDetails {
  std::string name{};
  ByteCount bytes = 0;
  std::string pci_address{};           ///< "0000:1b:00.0", as /sys has it
  std::vector<int> peers{};            ///< devices whose memory it can access
  bool gpu_direct = false;             ///< NICs can read and write its memory, as far as the driver knows
  bool dma_buf = false;                ///< its memory can be shown to them as the kernel's dma-bufs
  double memory_bytes_per_second = 0;  ///< at most, read and written together; 0: not known
};

/// Memory of a device for another process of the host to map: by a handle for the whole allocation, or by a descriptor for each
/// chunk that it lies in.
struct DeviceExport {
  struct Chunk {
    ByteCount bytes = 0;
    support::Descriptor descriptor{};
  };
  std::vector<std::byte> handle{};  ///< 64 bytes; empty: chunks
  std::vector<Chunk> chunks{};      ///< side by side
  ByteCount offset = 0;             ///< in what is mapped, of what was exported
  ByteCount bytes = 0;              ///< from there
};

/// Memory that a runtime has allocated. Movable owner by pointer; its stream work must be over when it goes.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  [[nodiscard]] virtual std::byte* address() const = 0;
  [[nodiscard]] virtual ByteCount bytes() const = 0;
};

/// One strided copy on a device. Both sides are memory of that device, memory of another one that it may access, or host
/// memory of DeviceRuntime::allocate_host(). Borrowed until the stream is past it.
struct DeviceCopy {
  StridedCopy copy;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
};

/// Work of one device, one piece after the other. Nothing here waits.
/// Threads: one at a time.
class DeviceStream {
 public:
  using Done = std::function<void(const std::optional<Error>& error)>;

  /// Waits for what is under way.
  virtual ~DeviceStream() = default;
  /// What is queued from now on begins once the event (a cudaEvent_t) has happened. Errors: throws Error{invalid_argument} for what
  /// is no event.
  virtual void wait(void* event) = 0;
  /// The event, of this device, happens once everything queued so far is over. Errors: as wait().
  virtual void record(void* event) = 0;
  /// Zeros into memory of this device.
  virtual void clear(std::byte* address, ByteCount bytes) = 0;
  /// All copies side by side, in one piece of work. The list is copied.
  virtual void copy(std::span<const DeviceCopy> copies) = 0;
  /// Tree digests (memory/tree_digest.hpp) of what each copy would read, in their order, into `digests`, which is borrowed until
  /// the stream is past it.
  virtual void digest(std::span<const DeviceCopy> copies, std::span<Digest128> digests) = 0;
  /// For programs that try restores: writes what the boxes say, or adds the number of elements that are not so to `wrong`,
  /// which is borrowed until the stream is past it. False: this stream makes no values, and nothing is queued.
  virtual bool fill(std::span<const ValueBox> boxes) = 0;
  virtual bool count_wrong(std::span<const ValueBox> boxes, std::uint64_t& wrong) = 0;
  /// `done` runs once, on a thread of the runtime, when everything queued so far is over. It may not call the runtime.
  virtual void call_when_done(Done done) = 0;
  /// For libraries that queue work of their own: the runtime's handle (a cudaStream_t). Null: it has none.
  [[nodiscard]] virtual void* native() const = 0;
};

/// Devices of one kind, as this process sees them.
/// Threads: any.
/// Errors: calls that cannot be made throw Error{out_of_resources} where memory has run out, Error{unsupported} where driver
///         or device cannot do it, Error{invalid_argument} for no such device, and Error{transport_failed} for a device
///         that has failed for good: then everything on it fails, and host memory goes on.
class DeviceRuntime {  // defined here whole: modules have no object code of the library
 public:
  virtual ~DeviceRuntime() = default;
  /// For people: runtime and driver.
  [[nodiscard]] virtual std::string version() const = 0;
  [[nodiscard]] virtual int device_count() const = 0;
  /// For people.
  [[nodiscard]] virtual DeviceDetails details(int device) const = 0;
  /// What `address` points into; empty for host memory, pinned memory included. Where that is chunks side by side, so many of them as
  /// `bytes` from `address` take: it may end before; one byte asks about one chunk. The same question about the same memory gives the
  /// same number.
  /// Errors: throws Error{invalid_argument} where nothing is mapped, or on a device that this process does not see, and
  ///         Error{unsupported} for arrays.
  [[nodiscard]] virtual std::optional<DeviceAllocation> find(const void* address, ByteCount bytes = 1) const = 0;
  /// Content: undefined. Bytes: more than 0.
  virtual std::unique_ptr<DeviceMemory> allocate(int device, ByteCount bytes) = 0;
  /// Host memory that every device can copy from and into.
  virtual std::unique_ptr<DeviceMemory> allocate_host(ByteCount bytes) = 0;
  virtual std::unique_ptr<DeviceStream> open_stream(int device) = 0;
  /// Runs `work` with `device` as this thread's current one, and leaves the thread as it was found: for libraries that take
  /// the device from there.
  virtual void on_device(int device, const std::function<void()>& work) = 0;
  /// Whether this process works with the device already, so that memory of it costs no context.
  [[nodiscard]] virtual bool in_use(int device) const = 0;
  /// Before memory of a device, all of the range, is shown to NICs: from now on copies of the caller's that look synchronous are.
  virtual void prepare_for_nics(const void* address, ByteCount bytes) = 0;
  /// What NICs have written to memory of the device by now is seen by what its streams begin from now on. Does nothing where the
  /// device sees to that.
  virtual void flush_remote_writes(int device) = 0;
  /// From now on streams of `device` can access memory of `peer`, as far as that is DeviceAllocation::peer_access, where it returns
  /// true.
  virtual bool enable_peer_access(int device, int peer) = 0;
  /// For another process. Errors: throws Error{unsupported} for memory that cannot be handed over, and Error{invalid_argument} where
  ///         not all of it is memory of one device.
  virtual DeviceExport export_memory(const void* address, ByteCount bytes) = 0;
  /// What another process has exported, mapped for streams of `device`, and of those that enable_peer_access() gives its memory
  /// to, until it goes; the exporter must keep it until then.
  virtual std::unique_ptr<DeviceMemory> import_memory(int device, const DeviceExport& exported) = 0;
};

/// The runtime of this process, or why there is none.
struct FoundRuntime {
  std::shared_ptr<DeviceRuntime> runtime;  ///< null: see why_not. owners: this process and who works with it
  std::string why_not;                     ///< for people
};
/// Loads it when called first. Cheap afterwards.
FoundRuntime device_runtime();
/// Whether memory can lie on a device at all: cheap, and loads nothing. False as long as nobody in this process has loaded the
/// driver's library.
bool devices_in_use();
/// For tests: from now on `runtime` is the process's; null: back to what was found.
void use_device_runtime(std::shared_ptr<DeviceRuntime> runtime);

}  // namespace shardwire::memory
