// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/registration.hpp"

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <utility>

#include "transport/bytes.hpp"
#include "transport/ucx/peer.hpp"

namespace shardwire::transport::ucx {
namespace {

constexpr std::uint64_t key_magic = 0x79656b2d786375ULL;

struct KeyRecord {
  std::uint64_t magic = key_magic;
  std::uint64_t base = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t serial = 0;
};

// UCX names shared memory by its descriptor and address, and the next region may get those of one that is gone. Readers
// keep what they have mapped by key, so without this they would go on reading the old memory.
std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

Bytes encode_unmapped(const ConstMemory& memory) {
  return encode({.base = reinterpret_cast<std::uintptr_t>(memory.address),
                 .size_bytes = memory.bytes,
                 .serial = 0,
                 .packed = {}});
}

class EmptyRegion final : public Region {
 public:
  [[nodiscard]] Memory memory() const override { return {}; }
  [[nodiscard]] Bytes key() const override { return encode_unmapped({}); }
};

class AdoptedRegion final : public Region {
 public:
  explicit AdoptedRegion(const Memory& memory) : memory_(memory) {}
  [[nodiscard]] Memory memory() const override { return memory_; }
  [[nodiscard]] Bytes key() const override { return {}; }

 private:
  Memory memory_;
};

class PrivateRegion final : public Region {
 public:
  explicit PrivateRegion(const Memory& memory) : memory_(memory) {}
  ~PrivateRegion() override { ::munmap(memory_.address, memory_.bytes); }
  PrivateRegion(const PrivateRegion&) = delete;
  PrivateRegion& operator=(const PrivateRegion&) = delete;
  [[nodiscard]] Memory memory() const override { return memory_; }
  [[nodiscard]] Bytes key() const override { return encode_unmapped(memory_); }

 private:
  Memory memory_;
};

class SharedRegion final : public Region {
 public:
  SharedRegion(std::shared_ptr<Context> context, ByteCount size_bytes) : context_(std::move(context)) {
    const ScopedLogSuppression no_log;
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    params.length = size_bytes;
    params.flags = UCP_MEM_MAP_ALLOCATE;
    const std::lock_guard lock(context_->memory_mutex);
    check(ucp_mem_map(context_->handle(), &params, &handle_), "allocate shared memory");
    ucp_mem_attr_t attributes{};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
    if (ucp_mem_query(handle_, &attributes) == UCS_OK && attributes.length >= size_bytes) {
      memory_ = {static_cast<std::byte*>(attributes.address), size_bytes, {}};
    }
  }
  ~SharedRegion() override {
    const ScopedLogSuppression no_log;
    const std::lock_guard lock(context_->memory_mutex);
    ucp_mem_unmap(context_->handle(), handle_);
  }
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  [[nodiscard]] Memory memory() const override { return memory_; }
  [[nodiscard]] Bytes key() const override {
    const ScopedLogSuppression no_log;
    void* packed = nullptr;
    std::size_t size = 0;
    const std::lock_guard lock(context_->memory_mutex);
    check(ucp_rkey_pack(context_->handle(), handle_, &packed, &size), "pack the key of a region");
    const std::unique_ptr<void, void (*)(void*)> owner(packed, ucp_rkey_buffer_release);
    return encode({.base = reinterpret_cast<std::uintptr_t>(memory_.address),
                   .size_bytes = memory_.bytes,
                   .serial = serial_,
                   .packed = {static_cast<const std::byte*>(packed), size}});
  }

 private:
  std::shared_ptr<Context> context_;
  std::uint64_t serial_ = next_serial();
  ucp_mem_h handle_ = nullptr;
  Memory memory_;
};

class UcxRemote final : public RemoteRegion {
 public:
  UcxRemote() = default;
  UcxRemote(std::shared_ptr<Worker> worker, RemoteKeyHandle key, const ConstMemory& mapped)
      : worker_(std::move(worker)), key_(std::move(key)), mapped_(mapped) {}
  [[nodiscard]] ConstMemory mapped() const override { return mapped_; }

 private:
  std::shared_ptr<Worker> worker_;  // the key lies in a pool of the worker
  RemoteKeyHandle key_;
  ConstMemory mapped_;
};

// UCX writes every page of a new segment before it maps it. That rules out a SIGBUS later, but a request that does not
// fit fills /dev/shm to the brim first, or brings the memory killer; so it is not made.
ByteCount shared_bytes_left() {
  struct statvfs info {};
  ByteCount left = ::statvfs("/dev/shm", &info) == 0 ? ByteCount{info.f_bsize} * info.f_bavail : 0;
  std::ifstream memory("/proc/meminfo");
  for (std::string word; memory >> word;) {
    ByteCount kibibytes = 0;
    if (word == "MemAvailable:" && memory >> kibibytes) left = std::min(left, kibibytes * 1024);
  }
  return left;
}

[[noreturn]] void refuse(ByteCount size_bytes, const std::string& why) {
  throw Error(ErrorCode::out_of_resources, fmt::format("cannot allocate a region of {} bytes: {}", size_bytes, why));
}

}  // namespace

Bytes encode(const DecodedKey& key) {
  Bytes out;
  append(out, KeyRecord{.base = key.base, .size_bytes = key.size_bytes, .serial = key.serial});
  append_bytes(out, key.packed);
  seal(out);
  return out;
}

DecodedKey decode_region_key(ByteView key) {
  auto body = unseal(key);
  const auto record = body ? take<KeyRecord>(*body) : std::nullopt;
  if (!record || record->magic != key_magic) {
    throw Error(ErrorCode::transport_failed, "not a region key of the ucx transport, or a garbled one");
  }
  return {.base = record->base, .size_bytes = record->size_bytes, .serial = record->serial, .packed = *body};
}

std::unique_ptr<Region> allocate_region(std::shared_ptr<Context> host, ByteCount size_bytes) {
  if (size_bytes == 0) return std::make_unique<EmptyRegion>();
  if (size_bytes > ByteCount{std::numeric_limits<std::ptrdiff_t>::max()})
    refuse(size_bytes, "more than can be addressed");
  if (!host) {
    void* const data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) refuse(size_bytes, "out of memory");
    return std::make_unique<PrivateRegion>(Memory{static_cast<std::byte*>(data), size_bytes, {}});
  }
  if (const ByteCount left = shared_bytes_left(); size_bytes > left) {
    refuse(size_bytes, fmt::format("{} bytes of shared memory are left (in /dev/shm, or of memory at all)", left));
  }
  std::unique_ptr<Region> region;
  try {
    region = std::make_unique<SharedRegion>(std::move(host), size_bytes);
  } catch (const Error& error) {
    refuse(size_bytes, error.what());
  }
  if (region->memory().empty()) refuse(size_bytes, "UCX gave less than was asked for");
  return region;
}

std::unique_ptr<Region> adopt_region(const Memory& memory) {
  return std::make_unique<AdoptedRegion>(memory);
}

std::unique_ptr<RemoteRegion> import_region(std::shared_ptr<Worker> worker, ucp_ep* endpoint, ByteView key,
                                            ByteCount size_bytes) {
  const ScopedLogSuppression no_log;
  const DecodedKey region = decode_region_key(key);
  if (size_bytes > region.size_bytes) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("region key covers {} bytes, {} were announced", region.size_bytes, size_bytes));
  }
  if (endpoint == nullptr || region.packed.empty() || size_bytes == 0) return std::make_unique<UcxRemote>();

  ucp_rkey_h raw = nullptr;
  const ucs_status_t status = ucp_ep_rkey_unpack(endpoint, region.packed.data(), &raw);
  if (status != UCS_OK) {
    // The usual reason is that the owner has gone meanwhile.
    throw Error(ErrorCode::transport_failed, fault_of(status, "read a region key").message);
  }
  RemoteKeyHandle handle(raw);
  void* address = nullptr;
  if (ucp_rkey_ptr(raw, region.base, &address) != UCS_OK || address == nullptr) return std::make_unique<UcxRemote>();
  const ConstMemory mapped{static_cast<const std::byte*>(address), size_bytes, {}};
  if (!is_readable(mapped.address) || !is_readable(mapped.address + size_bytes - 1)) {
    throw Error(ErrorCode::transport_failed, "the peer's memory is shorter than its region key says");
  }
  return std::make_unique<UcxRemote>(std::move(worker), std::move(handle), mapped);
}

}  // namespace shardwire::transport::ucx
