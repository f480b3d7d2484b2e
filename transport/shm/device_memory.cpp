// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/device_memory.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "memory/device.hpp"
#include "support/descriptors.hpp"
#include "transport/bytes.hpp"
#include "transport/device_use.hpp"
#include "transport/shm/attach.hpp"

namespace shardwire::transport::shm {
namespace {

using memory::DeviceExport;
using memory::DeviceRuntime;

constexpr std::uint64_t device_magic = 0x6563697665642d73ULL;
constexpr std::size_t max_reason_bytes = 1024;

// Followed by the handle, the length of each chunk, and the reason.
struct DeviceKey {
  std::uint64_t magic = device_magic;
  std::uint64_t serial = 0;      ///< of the allocation: a reader that has it mapped does not map it again
  std::uint64_t allocation = 0;  ///< see memory::DeviceAllocation::number
  std::uint64_t address = 0;     ///< in its own process
  std::uint64_t size_bytes = 0;
  std::uint64_t offset_bytes = 0;  ///< in the exported allocation, as its owner addresses it
  std::uint64_t exported_bytes = 0;
  std::uint64_t exported_offset = 0;
  std::uint32_t handle_bytes = 0;
  std::uint32_t chunks = 0;
  std::uint32_t reason_bytes = 0;  ///< more than 0: it cannot be mapped
  std::array<char, 20> pci_address{};
};

std::shared_ptr<DeviceRuntime> require_runtime() {
  const memory::FoundRuntime found = memory::device_runtime();
  if (found.runtime) return found.runtime;
  throw Error(ErrorCode::unsupported, "memory of devices is not known here: " + found.why_not);
}

/// Owners: all exported allocations that contain the chunk.
using ExportedChunk = std::shared_ptr<const DeviceExport::Chunk>;

/// An allocation exported to peers. Owners: the regions inside it.
struct Exported {
  memory::DeviceAllocation allocation{};
  std::uint64_t serial = 0;
  std::string pci_address{};
  DeviceExport exported{};  // the whole allocation, or
  std::vector<ExportedChunk> chunks{};
  std::string why_not{};

  [[nodiscard]] ByteCount bytes() const { return chunks.empty() ? exported.bytes : allocation.bytes; }
};

/// Objects that live while they are in use, found again by their key. Weak: the table keeps nothing alive.
template <typename Key, typename Value>
class Known {
 public:
  /// Concurrent callers of the same key wait for the first. `make()` may throw.
  template <typename Make>
  std::shared_ptr<const Value> find(const Key& key, Make make) {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) {
      if (auto value = found->second.lock()) return value;
    }
    std::shared_ptr<const Value> value = make();
    known_[key] = value;
    if (known_.size() >= sweep_at_) sweep();
    return value;
  }

 private:
  // Rare: there may be thousands of chunks.
  void sweep() {
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = 2 * known_.size() + 64;
  }

  std::mutex mutex_;
  std::map<Key, std::weak_ptr<const Value>> known_;  // guarded by mutex_, like the next field
  std::size_t sweep_at_ = 64;
};

/// Distinguishes an allocation or a chunk from all earlier ones. It includes the address, because the number of an
/// allocation of several chunks is that of its first bytes.
using Identity = std::tuple<std::uint64_t, std::uintptr_t, ByteCount>;
Identity identity_of(const memory::DeviceAllocation& one) {
  return {one.number, reinterpret_cast<std::uintptr_t>(one.address), one.bytes};
}

// The same at each publication, so that readers keep their mapping; a new one after the memory was freed.
std::uint64_t serial_of(const memory::DeviceAllocation& allocation) {
  static const std::uint64_t process = unique_number();
  Bytes named;
  for (const std::uint64_t part : {process, static_cast<std::uint64_t>(::getpid()), allocation.number,
                                   static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(allocation.address)),
                                   std::uint64_t{allocation.bytes}}) {
    append(named, part);
  }
  return checksum(named);
}

ExportedChunk export_chunk(DeviceRuntime& runtime, const std::byte* address) {
  static auto& known =
      *new Known<Identity, DeviceExport::Chunk>;  // never destroyed: regions may outlive static destruction
  const auto chunk = runtime.find(address, 1);
  if (!chunk || chunk->address != address) throw Error(ErrorCode::invalid_argument, "a chunk was freed meanwhile");
  return known.find(identity_of(*chunk), [&] {
    // Descriptors on their way to a peer are duplicates, and those of other messages may be open too.
    support::require_descriptors(1 + int{max_key_descriptors}, "handing over a chunk of device memory");
    DeviceExport exported = runtime.export_memory(address, chunk->bytes);
    if (exported.chunks.size() != 1) throw Error(ErrorCode::internal, "a chunk of device memory is not one");
    return std::make_shared<const DeviceExport::Chunk>(std::move(exported.chunks.front()));
  });
}

// One descriptor per chunk, however many allocations lie in a chunk and however many chunks an allocation has.
std::vector<ExportedChunk> export_chunks(DeviceRuntime& runtime, const memory::DeviceAllocation& allocation) {
  if (allocation.chunks > max_key_descriptors) {
    throw Error(ErrorCode::unsupported,
                fmt::format("memory of device {} at {} is {} chunks side by side, and at most {} are handed over",
                            allocation.device, static_cast<const void*>(allocation.address), allocation.chunks,
                            max_key_descriptors));
  }
  std::vector<ExportedChunk> chunks;
  ByteCount done = 0;
  while (done < allocation.bytes) {
    chunks.push_back(export_chunk(runtime, allocation.address + done));
    done += chunks.back()->bytes;
  }
  return chunks;
}

std::shared_ptr<Exported> export_allocation(DeviceRuntime& runtime, const memory::DeviceAllocation& allocation) {
  auto made = std::make_shared<Exported>();
  made->allocation = allocation;
  made->serial = serial_of(allocation);
  try {
    made->pci_address = runtime.details(allocation.device).pci_address;
    if (allocation.legacy_ipc || !allocation.descriptor_ipc) {
      made->exported = runtime.export_memory(allocation.address, allocation.bytes);
    } else {
      made->chunks = export_chunks(runtime, allocation);
    }
  } catch (const Error& error) {
    made->why_not = error.what();
  }
  return made;
}

std::shared_ptr<const Exported> exported_around(const Memory& memory) {
  static auto& known = *new Known<Identity, Exported>;  // never destroyed, like that of chunks
  const auto runtime = require_runtime();
  const memory::DeviceAllocation found = allocation_around(*runtime, memory);
  return known.find(identity_of(found), [&] { return export_allocation(*runtime, found); });
}

class DeviceRegion final : public Region {
 public:
  explicit DeviceRegion(const Memory& memory) : memory_(memory), exported_(exported_around(memory)) {}
  [[nodiscard]] Memory memory() const override { return memory_; }
  [[nodiscard]] Bytes key() const override {
    const Exported& all = *exported_;
    const auto offset = static_cast<ByteCount>(memory_.address - all.allocation.address);
    const std::string reason = all.why_not.substr(0, max_reason_bytes);
    DeviceKey record{.serial = all.serial,
                     .allocation = all.allocation.number,
                     .address = reinterpret_cast<std::uintptr_t>(memory_.address),
                     .size_bytes = memory_.bytes,
                     .offset_bytes = offset,
                     .exported_bytes = all.bytes(),
                     .exported_offset = all.exported.offset,
                     .handle_bytes = static_cast<std::uint32_t>(all.exported.handle.size()),
                     .chunks = static_cast<std::uint32_t>(all.chunks.size()),
                     .reason_bytes = static_cast<std::uint32_t>(reason.size())};
    const std::size_t shown = std::min(all.pci_address.size(), record.pci_address.size() - 1);
    std::copy_n(all.pci_address.begin(), shown, record.pci_address.begin());
    Bytes out;
    append(out, record);
    append_bytes(out, all.exported.handle);
    for (const ExportedChunk& chunk : all.chunks) append(out, std::uint64_t{chunk->bytes});
    append_bytes(out, std::as_bytes(std::span(reason)));
    seal(out);
    return out;
  }
  [[nodiscard]] std::vector<int> descriptors() const override {
    std::vector<int> out;
    for (const ExportedChunk& chunk : exported_->chunks) out.push_back(chunk->descriptor.get());
    return out;
  }

 private:
  Memory memory_;
  std::shared_ptr<const Exported> exported_;  // owners: see Exported
};

/// An allocation of a peer, mapped here for streams of one device. Owners: see MappedDeviceMemory.
struct Imported {
  std::shared_ptr<DeviceRuntime> runtime;  // owners: this and the process; outlives its mappings
  int device = 0;
  std::unique_ptr<memory::DeviceMemory> memory;
};

[[noreturn]] void refuse_device_key(const std::string& why) {
  throw Error(ErrorCode::transport_failed, "a key of device memory " + why);
}

/// A received key after a check of its consistency.
struct ReadKey {
  DeviceKey record;
  DeviceExport exported{};
  std::string reason{};
};

ReadKey read_key(ByteView body, std::vector<support::Descriptor> descriptors) {
  const auto record = take<DeviceKey>(body);
  if (!record) refuse_device_key("is cut off");
  const DeviceKey& key = *record;
  if (key.chunks > max_key_descriptors || key.chunks != descriptors.size()) {
    refuse_device_key(
        fmt::format("speaks of {} chunks, and {} descriptors came with it", key.chunks, descriptors.size()));
  }
  if (body.size() != std::uint64_t{key.handle_bytes} + key.chunks * sizeof(std::uint64_t) + key.reason_bytes) {
    refuse_device_key("has the wrong length");
  }
  if (key.offset_bytes > key.exported_bytes || key.size_bytes > key.exported_bytes - key.offset_bytes) {
    if (key.reason_bytes == 0) refuse_device_key("reaches outside of the memory that it opens");
  }
  ReadKey out{.record = key};
  out.exported.offset = key.exported_offset;
  out.exported.bytes = key.exported_bytes;
  out.exported.handle.assign(body.begin(), body.begin() + key.handle_bytes);
  body = body.subspan(key.handle_bytes);
  ByteCount whole = 0;
  for (support::Descriptor& descriptor : descriptors) {
    const auto bytes = take<std::uint64_t>(body).value_or(0);
    if (bytes == 0 || bytes > std::numeric_limits<ByteCount>::max() - whole) refuse_device_key("has impossible chunks");
    whole += bytes;
    out.exported.chunks.push_back({bytes, std::move(descriptor)});
  }
  if (key.chunks > 0 && (key.exported_offset > whole || key.exported_bytes > whole - key.exported_offset)) {
    refuse_device_key("has chunks that are shorter than their content");
  }
  for (const std::byte one : body) out.reason += static_cast<char>(one);
  return out;
}

// A device may have different ordinals in two processes. If it is none of this process's devices, any of them may reach
// it.
std::vector<int> devices_to_try(DeviceRuntime& runtime, const DeviceKey& key) {
  const std::string_view wanted(
      key.pci_address.data(),
      std::find(key.pci_address.begin(), key.pci_address.end(), '\0') - key.pci_address.begin());
  std::vector<int> all;
  for (int device = 0; device < runtime.device_count(); ++device) {
    if (!wanted.empty() && runtime.details(device).pci_address == wanted) return {device};
    all.push_back(device);
  }
  return all;
}

std::shared_ptr<const Imported> import_for(const std::shared_ptr<DeviceRuntime>& runtime, int device,
                                           const ReadKey& key) {
  using Key = std::tuple<std::uint64_t, int>;
  static auto& known = *new Known<Key, Imported>;  // never destroyed, like that of chunks
  return known.find({key.record.serial, device}, [&] {
    auto mapped = runtime->import_memory(device, key.exported);
    return std::make_shared<const Imported>(Imported{runtime, device, std::move(mapped)});
  });
}

MappedDeviceMemory import_key(const std::shared_ptr<DeviceRuntime>& runtime, const ReadKey& key, ByteCount size_bytes) {
  MappedDeviceMemory out{.why_not = "this process sees no device"};
  const std::vector<int> devices = devices_to_try(*runtime, key.record);
  for (const int device : devices) {
    try {
      const auto imported = import_for(runtime, device, key);
      const std::byte* const first = imported->memory->address() + key.record.offset_bytes;
      // A handle opens memory for the device on which it is opened. Other devices access that device's memory as its
      // peers.
      return {.memory = {first, size_bytes, {MemoryKind::cuda, device}},
              .peer_access = key.exported.handle.empty() || devices.size() == 1,
              .mapping = imported};
    } catch (const Error& error) {
      out.why_not = fmt::format("device {} does not map memory of the peer's (CUDA IPC): {}", device, error.what());
    }
  }
  return out;
}

// Handles of the same process cannot be opened and are not needed.
MappedDeviceMemory own_memory(DeviceRuntime& runtime, const DeviceKey& key, ByteCount size_bytes) {
  const auto* const address = reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(key.address));
  const auto allocation =
      runtime.find(address - key.offset_bytes, std::max<ByteCount>(1, key.offset_bytes + key.size_bytes));
  if (!allocation || allocation->number != key.allocation) return {.why_not = "it was freed"};
  return {.memory = {address, size_bytes, {MemoryKind::cuda, allocation->device}},
          .peer_access = allocation->peer_access};
}

}  // namespace

std::unique_ptr<Region> adopt_device_region(const Memory& memory) {
  return std::make_unique<DeviceRegion>(memory);
}

bool is_device_key(ByteView body) {
  return take<std::uint64_t>(body).value_or(0) == device_magic;
}

MappedDeviceMemory map_device_memory(ByteView body, std::vector<support::Descriptor> descriptors, ByteCount size_bytes,
                                     pid_t peer) {
  const ReadKey key = read_key(body, std::move(descriptors));
  if (size_bytes > key.record.size_bytes) {
    refuse_device_key(fmt::format("covers {} bytes, {} were announced", key.record.size_bytes, size_bytes));
  }
  if (!key.reason.empty()) return {.why_not = key.reason};
  support::Fallback why_not = why_no_device_memory();
  if (!why_not.empty()) return {.why_not = std::move(why_not.detail)};
  try {
    const auto runtime = require_runtime();
    return peer == ::getpid() ? own_memory(*runtime, key.record, size_bytes) : import_key(runtime, key, size_bytes);
  } catch (const Error& error) {
    return {.why_not = error.what()};
  }
}

}  // namespace shardwire::transport::shm
