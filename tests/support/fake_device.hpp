// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memory/device.hpp"
#include "memory/device_check.hpp"
#include "support/descriptors.hpp"

namespace shardwire::test {

/// Devices made of ordinary memory, for tests of everything above memory::DeviceRuntime.
///
/// Device memory is mapped twice. At its public address it can be neither read nor written: access other than through
/// the runtime ends the process by a signal. Streams use the other mapping. A stream is a thread that works with delays
/// and makes the copies of one piece of work in any order. Host memory must come from allocate_host(). As with CUDA,
/// access outside of live memory is an error that loses the device.
///
/// Another process maps exported memory: by a handle, which names a file that the exporter has open, or by one
/// descriptor per chunk. The exporter need not cooperate, and cannot open its own handles.
/// Threads: any.
class FakeDevices final : public memory::DeviceRuntime {
 public:
  /// How memory can be exported to other processes.
  enum class Sharing : std::uint8_t { none, handle, chunks };
  /// Size of a chunk; the last chunk of an allocation holds the remaining bytes.
  static constexpr ByteCount chunk_bytes = ByteCount{8} << 10;

  /// `first`: number of device 0 among the host's devices, so that processes can identify common devices.
  explicit FakeDevices(int devices = 2, int first = 0);
  ~FakeDevices() override;
  FakeDevices(const FakeDevices&) = delete;
  FakeDevices& operator=(const FakeDevices&) = delete;

  [[nodiscard]] std::string version() const override { return "devices of the tests"; }
  [[nodiscard]] int device_count() const override { return devices_; }
  /// `set_peak()` sets the memory's speed.
  [[nodiscard]] memory::DeviceDetails details(int device) const override;
  [[nodiscard]] std::optional<memory::DeviceAllocation> find(const void* address, ByteCount bytes) const override;
  std::unique_ptr<memory::DeviceMemory> allocate(int device, ByteCount bytes) override;
  std::unique_ptr<memory::DeviceMemory> allocate_host(ByteCount bytes) override;
  std::unique_ptr<memory::DeviceStream> open_stream(int device) override;
  void on_device(int device, const std::function<void()>& work) override {
    check(device);
    work();
  }
  [[nodiscard]] bool in_use(int device) const override { return device >= 0 && device < devices_; }
  void prepare_for_nics(const void* /*address*/, ByteCount /*bytes*/) override {}
  void flush_remote_writes(int /*device*/) override {}
  /// Without this call, a device's copies that access another device's memory are errors.
  bool enable_peer_access(int device, int peer) override;
  memory::DeviceExport export_memory(const void* address, ByteCount bytes) override;
  std::unique_ptr<memory::DeviceMemory> import_memory(int device, const memory::DeviceExport& exported) override;

  // Operations of a program that uses the devices in addition to the library.

  /// A program's memory. The most recently freed memory of the same size is reused: the same address with another
  /// allocation number.
  std::byte* take(int device, ByteCount bytes, bool managed = false);
  /// How later allocations can be exported; initially not at all.
  void share(Sharing sharing) { sharing_ = sharing; }
  void give_back(std::byte* address);
  void write(std::byte* address, std::span<const std::byte> bytes);
  [[nodiscard]] std::vector<std::byte> read(const std::byte* address, ByteCount bytes) const;
  /// The address at which the runtime itself accesses the memory.
  [[nodiscard]] std::byte* behind(const std::byte* address) const;
  void* make_event();
  void fire(void* event);
  /// Waits until the event was fired, or all work before its recording is done. Returns false after `limit`.
  bool await(void* event, std::chrono::milliseconds limit) const;
  /// The event is invalid afterwards.
  void destroy(void* event);

  // Faults.

  void refuse_device_memory(bool refused) { refuse_device_memory_ = refused; }
  void refuse_host_memory(bool refused) { refuse_host_memory_ = refused; }
  /// While held, opening a stream blocks.
  void hold_streams(bool held);
  /// While held, allocating host memory blocks.
  void hold_host_memory(bool held);
  /// Streams refuse callbacks for the end of work that is already queued.
  void refuse_calls(bool refused) { refuse_calls_ = refused; }
  /// Later digests are wrong, each time differently.
  void spoil_digests(bool spoiled) { spoil_digests_ = spoiled; }
  /// Later peer access is refused for all devices.
  void refuse_peers(bool refused) { refuse_peers_ = refused; }
  /// Later allocations cannot be accessed by other devices, even with peer access enabled.
  void close_to_peers(bool closed) { close_to_peers_ = closed; }
  /// Later imports from other processes fail.
  void refuse_imports(bool refused) { refuse_imports_ = refused; }
  void set_peak(double bytes_per_second) { peak_ = bytes_per_second; }
  /// Copies of more than one run are silently skipped.
  void drop_strided_copies(bool dropped) { drop_strided_copies_ = dropped; }
  /// Whether streams opened later support values; initially they do.
  void make_values(bool made) { make_values_ = made; }
  /// Address queries fail from now on.
  void fail_queries(bool fails) { fail_queries_ = fails; }
  /// Everything on this device fails from now on.
  void lose(int device);
  /// The same from copy number `copy` on; the first is 1.
  void lose_at_copy(int device, std::uint64_t copy);

  // Observations.

  [[nodiscard]] ByteCount pinned_bytes() const { return pinned_bytes_; }
  [[nodiscard]] ByteCount max_pinned_bytes() const { return max_pinned_bytes_; }
  /// Number of threads that wait for host memory while it is held.
  [[nodiscard]] int host_memory_wanted() const { return host_memory_wanted_; }
  /// The thread that freed host memory last; valid after the first time.
  [[nodiscard]] std::thread::id pinned_freed_by() const { return pinned_freed_by_; }
  [[nodiscard]] std::uint64_t copies() const { return copies_; }
  [[nodiscard]] std::uint64_t copied_bytes() const { return copied_bytes_; }
  /// Number of different copy tables given to streams: a CUDA stream uploads no others.
  [[nodiscard]] std::size_t tables() const;
  /// Number of open streams.
  [[nodiscard]] int streams() const { return streams_; }
  /// Pieces of work that are queued and not done.
  [[nodiscard]] int under_way() const { return under_way_; }
  /// Allocations of other processes that are mapped, and that were ever mapped.
  [[nodiscard]] int imports() const { return imports_; }
  [[nodiscard]] int imports_made() const { return imports_made_; }
  /// Number of waits for invalid events.
  [[nodiscard]] int wrong_events() const { return wrong_events_; }

 private:
  friend class FakeStream;
  class Memory;
  class Event;
  struct Block;

  void note_table(std::span<const memory::DeviceCopy> copies);
  void run(int device, const memory::DeviceCopy& copy);
  void check_access(int device, const std::byte* address) const;
  [[nodiscard]] std::vector<memory::ValueBox> reach(std::span<const memory::ValueBox> boxes) const;
  [[nodiscard]] Digest128 digest(const memory::DeviceCopy& copy);
  [[nodiscard]] std::byte* reach(const std::byte* first, ByteCount bytes) const;  // at the runtime's address; throws
  [[nodiscard]] const Block* around(const void* address) const;                   // requires the lock
  [[nodiscard]] static memory::DeviceAllocation describe(const Block& block, const void* address, ByteCount bytes);
  void check(int device) const;
  void check_event(const void* event);
  Block& add_block(int device, ByteCount bytes, std::vector<support::Descriptor> files, ByteCount file_bytes);
  void remove_block(const std::byte* address);
  void release_host(const std::byte* address);

  int devices_;
  int first_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Block> blocks_;  // by address; guarded by mutex_, like the next ones
  std::map<std::uintptr_t, ByteCount> pinned_;
  std::set<int> lost_;
  std::set<std::pair<int, int>> accessible_;  // accessing device, accessed device
  std::set<std::vector<std::byte>> tables_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Event>> destroyed_;
  std::uint64_t last_number_ = 0;
  std::atomic<bool> refuse_device_memory_ = false;
  std::atomic<bool> refuse_host_memory_ = false;
  std::atomic<bool> refuse_calls_ = false;
  std::atomic<bool> hold_streams_ = false;
  std::atomic<bool> hold_host_memory_ = false;
  std::atomic<int> host_memory_wanted_ = 0;
  std::atomic<bool> spoil_digests_ = false;
  std::atomic<std::uint64_t> spoiled_ = 0;
  std::atomic<bool> make_values_ = true;
  std::atomic<double> peak_ = 0;
  std::atomic<bool> drop_strided_copies_ = false;
  std::atomic<bool> fail_queries_ = false;
  std::atomic<bool> refuse_peers_ = false;
  std::atomic<bool> refuse_imports_ = false;
  std::atomic<bool> close_to_peers_ = false;
  std::atomic<Sharing> sharing_ = Sharing::none;
  std::atomic<int> imports_ = 0;
  std::atomic<int> imports_made_ = 0;
  std::atomic<int> lost_at_copy_ = 0;  // the device
  std::atomic<std::uint64_t> lose_at_copy_ = 0;
  std::atomic<ByteCount> pinned_bytes_ = 0;
  std::atomic<ByteCount> max_pinned_bytes_ = 0;
  std::atomic<std::thread::id> pinned_freed_by_{};
  std::atomic<std::uint64_t> copies_ = 0;
  std::atomic<std::uint64_t> copied_bytes_ = 0;
  std::atomic<int> streams_ = 0;
  std::atomic<int> under_way_ = 0;
  std::atomic<int> wrong_events_ = 0;
};

/// Installs fake devices as this process's devices during its lifetime.
class UsedDevices {
 public:
  explicit UsedDevices(int devices = 2, int first = 0) : fake_(std::make_shared<FakeDevices>(devices, first)) {
    memory::use_device_runtime(fake_);
  }
  ~UsedDevices() { memory::use_device_runtime(nullptr); }
  UsedDevices(const UsedDevices&) = delete;
  UsedDevices& operator=(const UsedDevices&) = delete;
  FakeDevices* operator->() const { return fake_.get(); }

 private:
  std::shared_ptr<FakeDevices> fake_;  // owners: this and the process
};

}  // namespace shardwire::test
