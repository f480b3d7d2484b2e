// SPDX-License-Identifier: Apache-2.0
#include "support/fake_device.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "memory/device_copy/copy_table.hpp"
#include "memory/device_copy/value_box.hpp"
#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"

namespace shardwire::test {

using memory::DeviceCopy;

namespace {

constexpr std::align_val_t pinned_alignment{4096};

std::uintptr_t number_of(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

ByteCount whole_pages(ByteCount bytes) {
  const auto page = static_cast<ByteCount>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

/// Content of a 64-byte handle.
struct Handle {
  std::uint64_t magic = 0x6b6166;
  std::int64_t process = 0;
  std::int64_t file = 0;
  std::uint64_t bytes = 0;
  std::uint64_t unused[4] = {};
};
static_assert(sizeof(Handle) == 64);

void require_system(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("fake devices: ") + what);
}

}  // namespace

struct FakeDevices::Block {
  int device = 0;
  std::byte* seen = nullptr;
  std::byte* behind = nullptr;
  ByteCount bytes = 0;
  std::uint64_t number = 0;
  bool managed = false;
  bool live = false;
  bool peer_access = true;
  Sharing sharing = Sharing::none;
  std::vector<support::Descriptor> files{};  // adjacent
};

class FakeDevices::Event {
 public:
  void fire() {
    {
      const std::lock_guard lock(mutex_);
      fired_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return fired_; });
  }
  bool wait_for(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return fired_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool fired_ = false;  // guarded by mutex_
};

class FakeDevices::Memory final : public memory::DeviceMemory {
 public:
  using Release = std::function<void(std::byte*)>;
  Memory(std::byte* address, ByteCount bytes, Release release)
      : address_(address), bytes_(bytes), release_(std::move(release)) {}
  ~Memory() override { release_(address_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::byte* address() const override { return address_; }
  [[nodiscard]] ByteCount bytes() const override { return bytes_; }

 private:
  std::byte* address_;
  ByteCount bytes_;
  Release release_;
};

class FakeStream : public memory::DeviceStream {
 public:
  FakeStream(FakeDevices& devices, int device) : devices_(devices), device_(device), thread_([this] { run(); }) {
    ++devices_.streams_;
  }
  ~FakeStream() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    queued_.notify_one();
    thread_.join();
    --devices_.streams_;
  }
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  void wait(void* event) override {
    devices_.check(device_);
    devices_.check_event(event);
    push([event] { static_cast<FakeDevices::Event*>(event)->wait(); });
  }
  void record(void* event) override {
    devices_.check(device_);
    devices_.check_event(event);
    push([event] { static_cast<FakeDevices::Event*>(event)->fire(); });
  }
  void clear(std::byte* address, ByteCount bytes) override {
    devices_.check(device_);
    push([this, address, bytes] { std::memset(devices_.reach(address, bytes), 0, bytes); });
  }
  void copy(std::span<const DeviceCopy> copies) override {
    devices_.check(device_);
    devices_.note_table(copies);
    push([this, list = std::vector(copies.begin(), copies.end())] {
      std::vector<std::size_t> order(list.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::shuffle(order.begin(), order.end(), random_);
      for (const std::size_t i : order) devices_.run(device_, list[i]);
    });
  }
  void digest(std::span<const DeviceCopy> copies, std::span<Digest128> digests) override {
    devices_.check(device_);
    push([this, list = std::vector(copies.begin(), copies.end()), digests] {
      for (std::size_t i = 0; i < list.size(); ++i) digests[i] = devices_.digest(list[i]);
    });
  }
  void call_when_done(Done done) override {
    devices_.check(device_);
    if (devices_.refuse_calls_) throw Error(ErrorCode::out_of_resources, "nobody can be called");
    const std::lock_guard lock(mutex_);
    work_.push_back({std::move(done), true});
    queued_.notify_one();
  }
  [[nodiscard]] void* native() const override { return nullptr; }

 protected:
  void push(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    ++devices_.under_way_;
    work_.push_back({[task = std::move(task)](const std::optional<Error>&) { task(); }, false});
    queued_.notify_one();
  }
  [[nodiscard]] memory::ValueTable reached(std::span<const memory::ValueBox> boxes) const {
    return memory::ValueTable(devices_.reach(boxes));
  }

 private:
  struct Item {
    Done task;
    bool is_callback = false;
  };

  void run() {
    while (true) {
      Item next;
      {
        std::unique_lock lock(mutex_);
        queued_.wait(lock, [this] { return ending_ || !work_.empty(); });
        if (work_.empty()) return;
        next = std::move(work_.front());
        work_.pop_front();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
      try {
        devices_.check(device_);
        if (!next.is_callback) next.task(std::nullopt);
      } catch (const Error& error) {
        if (!failure_) failure_ = error;
        devices_.lose(device_);
      }
      if (next.is_callback) {
        next.task(failure_);
      } else {
        --devices_.under_way_;
      }
    }
  }

  FakeDevices& devices_;
  int device_;
  std::mutex mutex_;
  std::condition_variable queued_;
  std::deque<Item> work_;         // guarded by mutex_
  bool ending_ = false;           // guarded by mutex_
  std::optional<Error> failure_;  // its thread only, as the next
  std::minstd_rand random_{std::random_device{}()};
  std::thread thread_;
};

class FakeCheckedStream final : public FakeStream, public memory::DeviceCheck {
 public:
  using FakeStream::FakeStream;
  void fill(std::span<const memory::ValueBox> boxes) override {
    push([this, list = std::vector(boxes.begin(), boxes.end())] {
      const memory::ValueTable table = reached(list);
      for (std::uint64_t i = 0; i < table.view().chunks(); ++i) memory::fill_chunk(table.view(), i, 0, 1);
    });
  }
  void count_wrong(std::span<const memory::ValueBox> boxes, std::uint64_t& wrong) override {
    push([this, list = std::vector(boxes.begin(), boxes.end()), &wrong] {
      const memory::ValueTable table = reached(list);
      for (std::uint64_t i = 0; i < table.view().chunks(); ++i) {
        wrong += memory::count_wrong_of_chunk(table.view(), i, 0, 1);
      }
    });
  }
};

FakeDevices::FakeDevices(int devices, int first) : devices_(devices), first_(first) {
}

FakeDevices::~FakeDevices() {
  for (const auto& [address, block] : blocks_) {
    ::munmap(block.seen, block.bytes);
    ::munmap(block.behind, whole_pages(block.bytes));
  }
}

memory::DeviceDetails FakeDevices::details(int device) const {
  std::vector<int> peers;
  for (int peer = 0; peer < devices_ && !refuse_peers_; ++peer) {
    if (peer != device) peers.push_back(peer);
  }
  return {.name = "memory of the tests",
          .pci_address = "0000:0" + std::to_string(first_ + device) + ":00.0",
          .peers = std::move(peers),
          .memory_bytes_per_second = peak_};
}

bool FakeDevices::enable_peer_access(int device, int peer) {
  if (device == peer) return true;
  if (refuse_peers_) return false;
  const std::lock_guard lock(mutex_);
  accessible_.emplace(device, peer);
  return true;
}

memory::DeviceExport FakeDevices::export_memory(const void* address, ByteCount bytes) {
  const std::lock_guard lock(mutex_);
  const Block* block = around(address);
  if (block == nullptr) throw Error(ErrorCode::invalid_argument, "this is no memory of a device");
  const memory::DeviceAllocation chunks = describe(*block, address, bytes);
  const ByteCount offset = number_of(address) - number_of(chunks.address);
  if (bytes > chunks.bytes - offset) throw Error(ErrorCode::invalid_argument, "the allocation ends before that");
  memory::DeviceExport out{.offset = offset, .bytes = bytes};
  if (block->sharing == Sharing::none || block->managed) {
    throw Error(ErrorCode::unsupported, "it was allocated in a way that no other process can map");
  }
  if (block->sharing == Sharing::handle) {
    const Handle handle{.process = ::getpid(), .file = block->files.front().get(), .bytes = block->bytes};
    out.handle.resize(sizeof handle);
    std::memcpy(out.handle.data(), &handle, sizeof handle);
    return out;
  }
  const auto first = static_cast<std::size_t>(chunks.address - block->seen) / chunk_bytes;
  for (const support::Descriptor& file : std::span(block->files).subspan(first, chunks.chunks)) {
    support::Descriptor copy(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy) throw Error(ErrorCode::out_of_resources, "no file descriptor is left");
    out.chunks.push_back({chunk_bytes, std::move(copy)});
  }
  return out;
}

std::unique_ptr<memory::DeviceMemory> FakeDevices::import_memory(int device, const memory::DeviceExport& exported) {
  check(device);
  if (refuse_imports_) throw Error(ErrorCode::unsupported, "nothing is mapped (as told)");
  std::vector<support::Descriptor> files;
  ByteCount bytes = exported.chunks.size() * chunk_bytes;
  if (exported.chunks.empty()) {
    Handle handle;
    if (exported.handle.size() != sizeof handle) throw Error(ErrorCode::invalid_argument, "this is no handle");
    std::memcpy(&handle, exported.handle.data(), sizeof handle);
    if (handle.process == ::getpid()) throw Error(ErrorCode::invalid_argument, "the handle is this process's own");
    const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
    files.emplace_back(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!files.front()) throw Error(ErrorCode::invalid_argument, "the handle opens nothing (any more)");
    bytes = handle.bytes;
  }
  for (const auto& chunk : exported.chunks) {
    files.emplace_back(::fcntl(chunk.descriptor.get(), F_DUPFD_CLOEXEC, 0));
  }
  const std::lock_guard lock(mutex_);
  Block& block = add_block(device, bytes, std::move(files), exported.chunks.empty() ? bytes : chunk_bytes);
  block.number = ++last_number_;
  block.live = true;
  ++imports_;
  ++imports_made_;
  return std::make_unique<Memory>(block.seen + exported.offset, exported.bytes,
                                  [this, seen = block.seen](const std::byte*) { remove_block(seen); });
}

// Requires the lock. Reserves the range first, so that chunks are adjacent.
FakeDevices::Block& FakeDevices::add_block(int device, ByteCount bytes, std::vector<support::Descriptor> files,
                                           ByteCount file_bytes) {
  const ByteCount whole = whole_pages(bytes);
  void* const seen = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* const behind = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require_system(seen != MAP_FAILED && behind != MAP_FAILED, "no address space");
  auto* const first = static_cast<std::byte*>(behind);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const ByteCount at = i * file_bytes;
    void* const mapped = ::mmap(first + at, std::min(whole_pages(file_bytes), whole - at), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, files[i].get(), 0);
    require_system(mapped != MAP_FAILED, "memory is not mapped");
  }
  Block& block = blocks_[number_of(seen)];
  block.device = device;
  block.seen = static_cast<std::byte*>(seen);
  block.behind = first;
  block.bytes = bytes;
  block.files = std::move(files);
  return block;
}

void FakeDevices::remove_block(const std::byte* address) {
  const std::lock_guard lock(mutex_);
  const auto gone = blocks_.extract(number_of(address));
  ::munmap(gone.mapped().seen, gone.mapped().bytes);
  ::munmap(gone.mapped().behind, whole_pages(gone.mapped().bytes));
  --imports_;
}

void FakeDevices::check(int device) const {
  const std::lock_guard lock(mutex_);
  if (device < 0 || device >= devices_) {
    throw Error(ErrorCode::invalid_argument, "there is no device " + std::to_string(device));
  }
  if (lost_.contains(device)) {
    throw Error(ErrorCode::transport_failed, "device " + std::to_string(device) + " has failed for good");
  }
}

void FakeDevices::check_event(const void* event) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::any_of(events_, [&](const auto& one) { return one.get() == event; })) return;
  ++wrong_events_;
  throw Error(ErrorCode::invalid_argument, "this is no event");
}

void FakeDevices::lose(int device) {
  const std::lock_guard lock(mutex_);
  lost_.insert(device);
}

void FakeDevices::lose_at_copy(int device, std::uint64_t copy) {
  lost_at_copy_ = device;
  lose_at_copy_ = copies_ + copy;
}

const FakeDevices::Block* FakeDevices::around(const void* address) const {
  auto next = blocks_.upper_bound(number_of(address));
  if (next == blocks_.begin()) return nullptr;
  const Block& block = std::prev(next)->second;
  return block.live && number_of(address) - number_of(block.seen) < block.bytes ? &block : nullptr;
}

memory::DeviceAllocation FakeDevices::describe(const Block& block, const void* address, ByteCount bytes) {
  memory::DeviceAllocation found;
  found.device = block.device;
  found.address = block.seen;
  found.bytes = block.bytes;
  found.number = block.number << 32;
  found.managed = block.managed;
  found.peer_access = block.peer_access;
  found.legacy_ipc = block.sharing == Sharing::handle && !block.managed;
  found.descriptor_ipc = block.sharing == Sharing::chunks && !block.managed;
  if (block.sharing != Sharing::chunks) return found;
  const ByteCount offset = number_of(address) - number_of(block.seen);
  const ByteCount first = offset / chunk_bytes;
  const ByteCount end = offset + std::clamp<ByteCount>(bytes, 1, block.bytes - offset);
  found.chunks = static_cast<std::uint32_t>((end + chunk_bytes - 1) / chunk_bytes - first);
  found.address += first * chunk_bytes;
  found.bytes = std::min(block.bytes - first * chunk_bytes, found.chunks * chunk_bytes);
  found.number += first << 16 | found.chunks;
  return found;
}

std::optional<memory::DeviceAllocation> FakeDevices::find(const void* address, ByteCount bytes) const {
  const std::lock_guard lock(mutex_);
  if (fail_queries_) throw Error(ErrorCode::transport_failed, "the driver has failed");
  const Block* block = around(address);
  return block == nullptr ? std::nullopt : std::optional(describe(*block, address, bytes));
}

std::byte* FakeDevices::take(int device, ByteCount bytes, bool managed) {
  check(device);
  if (refuse_device_memory_) throw Error(ErrorCode::out_of_resources, "the device has no memory left");
  const std::lock_guard lock(mutex_);
  const auto revive = [&](Block& block) {
    block.device = device;
    block.number = ++last_number_;
    block.managed = managed;
    block.live = true;
    block.peer_access = !close_to_peers_;
    std::memset(block.behind, 0xcd, block.bytes);
    return block.seen;
  };
  for (auto& [address, block] : blocks_) {
    if (!block.live && block.bytes == bytes && block.sharing == sharing_) return revive(block);
  }
  const ByteCount file_bytes = sharing_ == Sharing::chunks ? chunk_bytes : std::max<ByteCount>(1, bytes);
  std::vector<support::Descriptor> files;
  for (ByteCount at = 0; at < bytes; at += file_bytes) {
    const auto& file = files.emplace_back(::memfd_create("fake device memory", MFD_CLOEXEC));
    require_system(file && ::ftruncate(file.get(), static_cast<off_t>(whole_pages(file_bytes))) == 0, "no memory");
  }
  Block& block = add_block(device, bytes, std::move(files), file_bytes);
  block.sharing = sharing_;
  return revive(block);
}

void FakeDevices::give_back(std::byte* address) {
  const std::lock_guard lock(mutex_);
  blocks_.at(number_of(address)).live = false;
}

std::unique_ptr<memory::DeviceMemory> FakeDevices::allocate(int device, ByteCount bytes) {
  return std::make_unique<Memory>(take(device, bytes), bytes, [this](std::byte* address) { give_back(address); });
}

std::unique_ptr<memory::DeviceMemory> FakeDevices::allocate_host(ByteCount bytes) {
  ++host_memory_wanted_;
  hold_host_memory_.wait(true);
  --host_memory_wanted_;
  if (refuse_host_memory_) throw Error(ErrorCode::out_of_resources, "no host memory can be pinned");
  auto* const address = static_cast<std::byte*>(::operator new(bytes, pinned_alignment));
  const std::lock_guard lock(mutex_);
  pinned_.emplace(number_of(address), bytes);
  pinned_bytes_ += bytes;
  max_pinned_bytes_ = std::max<ByteCount>(max_pinned_bytes_, pinned_bytes_);
  return std::make_unique<Memory>(address, bytes, [this](std::byte* gone) { release_host(gone); });
}

void FakeDevices::release_host(const std::byte* address) {
  const std::lock_guard lock(mutex_);
  pinned_freed_by_ = std::this_thread::get_id();
  pinned_bytes_ -= pinned_.at(number_of(address));
  pinned_.erase(number_of(address));
  ::operator delete(const_cast<std::byte*>(address), pinned_alignment);
}

std::unique_ptr<memory::DeviceStream> FakeDevices::open_stream(int device) {
  hold_streams_.wait(true);
  check(device);
  if (!make_values_) return std::make_unique<FakeStream>(*this, device);
  return std::make_unique<FakeCheckedStream>(*this, device);
}

std::byte* FakeDevices::reach(const std::byte* first, ByteCount bytes) const {
  const std::lock_guard lock(mutex_);
  if (const Block* block = around(first)) {
    const auto offset = static_cast<ByteCount>(first - block->seen);
    if (bytes <= block->bytes - offset) return block->behind + offset;
  }
  const auto pinned = pinned_.upper_bound(number_of(first));
  if (pinned != pinned_.begin()) {
    const auto& [address, size] = *std::prev(pinned);
    const ByteCount offset = number_of(first) - address;
    if (offset < size && bytes <= size - offset) return const_cast<std::byte*>(first);
  }
  throw Error(ErrorCode::transport_failed, "a device has touched what is neither its memory nor pinned");
}

std::vector<memory::ValueBox> FakeDevices::reach(std::span<const memory::ValueBox> boxes) const {
  std::vector<memory::ValueBox> reached(boxes.begin(), boxes.end());
  for (memory::ValueBox& box : reached) {
    ByteCount bytes = box.item_bytes;
    for (std::size_t dim = 0; dim < box.dims; ++dim) bytes += (box.dim[dim].count - 1) * box.dim[dim].byte_stride;
    if (box.elements > 0) box.first = reach(box.first, bytes);
  }
  return reached;
}

void FakeDevices::note_table(std::span<const DeviceCopy> copies) {
  const memory::CopyTable table(copies);
  const std::lock_guard lock(mutex_);
  tables_.emplace(table.bytes().begin(), table.bytes().end());
}

std::size_t FakeDevices::tables() const {
  const std::lock_guard lock(mutex_);
  return tables_.size();
}

void FakeDevices::check_access(int device, const std::byte* address) const {
  const std::lock_guard lock(mutex_);
  const Block* block = around(address);
  if (block == nullptr || block->device == device) return;
  if (!block->peer_access || !accessible_.contains({device, block->device})) {
    throw Error(ErrorCode::transport_failed, "a device has touched memory of another one, which it was not given");
  }
  if (lost_.contains(block->device)) {
    throw Error(ErrorCode::transport_failed, "device " + std::to_string(block->device) + " has failed for good");
  }
}

void FakeDevices::run(int device, const DeviceCopy& copy) {
  if (copies_ + 1 == lose_at_copy_) lose(lost_at_copy_);
  check(device);
  const auto from = copy.copy.source_span();
  const auto to = copy.copy.target_span();
  check_access(device, copy.source + from.first);
  check_access(device, copy.target + to.first);
  const std::byte* const source = reach(copy.source + from.first, from.end - from.first) - from.first;
  std::byte* const target = reach(copy.target + to.first, to.end - to.first) - to.first;
  if (!drop_strided_copies_ || copy.copy.runs() == 1) copy.copy.run_all(source, target);
  ++copies_;
  copied_bytes_ += copy.copy.bytes();
}

Digest128 FakeDevices::digest(const DeviceCopy& copy) {
  const auto from = copy.copy.source_span();
  const std::byte* const source = reach(copy.source + from.first, from.end - from.first) - from.first;
  Digest128 digest = memory::digest_runs(copy.copy, source);
  if (spoil_digests_) digest.low ^= ++spoiled_;
  return digest;
}

std::byte* FakeDevices::behind(const std::byte* address) const {
  return reach(address, 1);
}

void FakeDevices::write(std::byte* address, std::span<const std::byte> bytes) {
  if (!bytes.empty()) std::memcpy(reach(address, bytes.size()), bytes.data(), bytes.size());
}

std::vector<std::byte> FakeDevices::read(const std::byte* address, ByteCount bytes) const {
  if (bytes == 0) return {};
  const std::byte* const from = reach(address, bytes);
  return {from, from + bytes};
}

void FakeDevices::hold_streams(bool held) {
  hold_streams_ = held;
  hold_streams_.notify_all();
}

void FakeDevices::hold_host_memory(bool held) {
  hold_host_memory_ = held;
  hold_host_memory_.notify_all();
}

bool FakeDevices::await(void* event, std::chrono::milliseconds limit) const {
  return static_cast<Event*>(event)->wait_for(limit);
}

void FakeDevices::destroy(void* event) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(events_, [&](const auto& one) { return one.get() == event; });
  destroyed_.push_back(std::move(*found));
  events_.erase(found);
}

void* FakeDevices::make_event() {
  const std::lock_guard lock(mutex_);
  return events_.emplace_back(std::make_unique<Event>()).get();
}

void FakeDevices::fire(void* event) {
  static_cast<Event*>(event)->fire();
}

}  // namespace shardwire::test
