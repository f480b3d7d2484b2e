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
#include "support/descriptors.hpp"

namespace shardwire::test {

/// Devices made of ordinary memory, for tests of everything above memory::DeviceRuntime.
///
/// Device memory is mapped twice: at the address that everybody sees it may be neither read nor written, so that who touches
/// it without the runtime ends by a signal; streams work through the other mapping. A stream is a thread that takes its time
/// and makes copies of one piece of work in any order. Host memory has to be that of allocate_host(). What lies outside of
/// live memory is an error, and the device is lost then, as with CUDA.
///
/// Another process maps what is exported to it: by a handle, which names a file that the exporter has open, or by a descriptor
/// for each chunk. The exporter does nothing for that, and its own handles are none to itself.
/// Threads: any.
class FakeDevices final : public memory::DeviceRuntime {
 public:
  /// How memory can be handed to other processes.
  enum class Sharing : std::uint8_t { none, handle, chunks };
  /// Chunks are as long as this, the last of an allocation but the bytes that are left.
  static constexpr ByteCount chunk_bytes = ByteCount{8} << 10;

  /// `first`: number of device 0 among all of the host, which tells processes what they have in common.
  explicit FakeDevices(int devices = 2, int first = 0);
  ~FakeDevices() override;
  FakeDevices(const FakeDevices&) = delete;
  FakeDevices& operator=(const FakeDevices&) = delete;

  [[nodiscard]] std::string version() const override { return "devices of the tests"; }
  [[nodiscard]] int device_count() const override { return devices_; }
  /// Their memory is as fast as `set_peak()` says.
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
  /// Copies of a device that touch memory of another one are mistakes before that.
  bool enable_peer_access(int device, int peer) override;
  memory::DeviceExport export_memory(const void* address, ByteCount bytes) override;
  std::unique_ptr<memory::DeviceMemory> import_memory(int device, const memory::DeviceExport& exported) override;

  // What a program that uses the devices does besides.

  /// Memory of a program; what was given back last lies at the same address again, under another number, where it is as large.
  std::byte* take(int device, ByteCount bytes, bool managed = false);
  /// What is taken from now on can be handed over so. None at first.
  void share(Sharing sharing) { sharing_ = sharing; }
  void give_back(std::byte* address);
  void write(std::byte* address, std::span<const std::byte> bytes);
  [[nodiscard]] std::vector<std::byte> read(const std::byte* address, ByteCount bytes) const;
  /// Where the runtime itself sees it.
  [[nodiscard]] std::byte* behind(const std::byte* address) const;
  void* make_event();
  void fire(void* event);
  /// Waits until it was fired, or everything before its recording is over. False: it took too long.
  bool await(void* event, std::chrono::milliseconds limit) const;
  /// It is no event from now on.
  void destroy(void* event);

  // Faults.

  void refuse_device_memory(bool refused) { refuse_device_memory_ = refused; }
  void refuse_host_memory(bool refused) { refuse_host_memory_ = refused; }
  /// Whoever opens a stream waits meanwhile.
  void hold_streams(bool held);
  /// Whoever wants host memory waits meanwhile.
  void hold_host_memory(bool held);
  /// Nobody can be called when work is done, which has been queued before.
  void refuse_calls(bool refused) { refuse_calls_ = refused; }
  /// Digests are of other bytes from now on, each time of others.
  void spoil_digests(bool spoiled) { spoil_digests_ = spoiled; }
  /// No device reaches the memory of another one, from now on.
  void refuse_peers(bool refused) { refuse_peers_ = refused; }
  /// What is taken from now on is open to no other device, whatever is enabled.
  void close_to_peers(bool closed) { close_to_peers_ = closed; }
  /// Nothing of another process is mapped any more.
  void refuse_imports(bool refused) { refuse_imports_ = refused; }
  void set_peak(double bytes_per_second) { peak_ = bytes_per_second; }
  /// Copies of more than one run are left out.
  void drop_strided_copies(bool dropped) { drop_strided_copies_ = dropped; }
  /// Whether streams make values; they do at first.
  void make_values(bool made) { make_values_ = made; }
  /// Nobody is told any more what an address is.
  void fail_queries(bool fails) { fail_queries_ = fails; }
  /// Everything on this device fails from now on.
  void lose(int device);
  /// The same when the copy of this number is to be made; the first is 1.
  void lose_at_copy(int device, std::uint64_t copy);

  // What has become of it.

  [[nodiscard]] ByteCount pinned_bytes() const { return pinned_bytes_; }
  [[nodiscard]] ByteCount max_pinned_bytes() const { return max_pinned_bytes_; }
  /// Who waits for some now, as told.
  [[nodiscard]] int host_memory_wanted() const { return host_memory_wanted_; }
  /// Who has freed host memory last; once some was.
  [[nodiscard]] std::thread::id pinned_freed_by() const { return pinned_freed_by_; }
  [[nodiscard]] std::uint64_t copies() const { return copies_; }
  [[nodiscard]] std::uint64_t copied_bytes() const { return copied_bytes_; }
  /// Different tables of copies that streams were given: those of CUDA upload no other ones.
  [[nodiscard]] std::size_t tables() const;
  /// Streams that are open.
  [[nodiscard]] int streams() const { return streams_; }
  /// Pieces of work that are queued and not over.
  [[nodiscard]] int under_way() const { return under_way_; }
  /// Allocations of other processes that are mapped, and that ever were.
  [[nodiscard]] int imports() const { return imports_; }
  [[nodiscard]] int imports_made() const { return imports_made_; }
  /// How often somebody wanted to wait for what is no event.
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
  [[nodiscard]] memory::Digest128 digest(const memory::DeviceCopy& copy);
  [[nodiscard]] std::byte* reach(const std::byte* first, ByteCount bytes) const;  // as the runtime sees it; throws
  [[nodiscard]] const Block* around(const void* address) const;                   // with the lock
  [[nodiscard]] static memory::DeviceAllocation describe(const Block& block, const void* address, ByteCount bytes);
  void check(int device) const;
  void check_event(const void* event);
  Block& add_block(int device, ByteCount bytes, std::vector<support::Descriptor> files, ByteCount file_bytes);
  void remove_block(const std::byte* address);
  void release_host(const std::byte* address);

  int devices_;
  int first_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Block> blocks_;  // by address; guarded by mutex_, as are the next
  std::map<std::uintptr_t, ByteCount> pinned_;
  std::set<int> lost_;
  std::set<std::pair<int, int>> accessible_;  // who accesses, and whose memory
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

/// The devices of this process while it lives.
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
