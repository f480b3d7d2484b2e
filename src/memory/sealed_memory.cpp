// SPDX-License-Identifier: Apache-2.0
#include "memory/sealed_memory.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "memory/page_placement.hpp"
#include "shardwire/error.hpp"

#ifndef MFD_NOEXEC_SEAL  // Linux 6.3
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE  // Linux 5.1
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace shardwire::memory {
namespace {

[[noreturn]] void refuse_memory(const std::string& what) {
  throw Error(ErrorCode::out_of_resources, fmt::format("{}: {}", what, std::strerror(errno)));
}

[[noreturn]] void refuse_descriptor(const std::string& why) {
  throw Error(ErrorCode::transport_failed, fmt::format("a descriptor that came with a region key {}", why));
}

// ftruncate() beyond the limit raises a signal that ends the process.
void require_file_size(ByteCount bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) return;
  throw Error(ErrorCode::out_of_resources, fmt::format("shared memory of {} bytes is more than the {} bytes that files "
                                                       "of this process may have (ulimit -f)",
                                                       bytes, limit.rlim_cur));
}

}  // namespace

support::Descriptor create_memory(ByteCount bytes) {
  require_file_size(bytes);
  constexpr const char* name = "shardwire";  // visible in /proc/<pid>/maps
  support::Descriptor memory(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!memory && errno == EINVAL) memory.reset(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) refuse_memory("cannot create shared memory (memfd_create)");
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    refuse_memory(fmt::format("cannot make shared memory {} bytes long", bytes));
  }
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    refuse_memory("cannot fix the size of shared memory");
  }
  return memory;
}

void allocate_pages(const support::Descriptor& memory, ByteCount bytes) {
  int status = 0;
  do {
    status = ::fallocate(memory.get(), 0, 0, static_cast<off_t>(bytes));
  } while (status != 0 && errno == EINTR);
  if (status != 0) refuse_memory(fmt::format("cannot allocate {} bytes of shared memory", bytes));
}

void seal_memory(const support::Descriptor& memory) {
  constexpr int seals = F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (::fcntl(memory.get(), F_ADD_SEALS, seals) != 0) {
    refuse_memory("cannot seal shared memory against its readers (Linux 5.1 or newer can)");
  }
}

namespace {

// The seals.
int require_fixed_seals(const support::Descriptor& memory, ByteCount bytes) {
  struct stat info {};
  if (::fstat(memory.get(), &info) != 0) refuse_descriptor(fmt::format("cannot be used: {}", std::strerror(errno)));
  if (!S_ISREG(info.st_mode)) refuse_descriptor("is no memory");
  // Missing huge pages would show only as a SIGBUS.
  struct statfs system {};
  if (::fstatfs(memory.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) refuse_descriptor("is a file on a disk");
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & size_seals) != size_seals) refuse_descriptor("is memory that its owner can cut short");
  if (info.st_size < 0 || static_cast<ByteCount>(info.st_size) != bytes) {
    refuse_descriptor(fmt::format("is memory of {} bytes where the key says {}", info.st_size, bytes));
  }
  return seals;
}

}  // namespace

void require_fixed(const support::Descriptor& memory, ByteCount bytes) {
  require_fixed_seals(memory, bytes);
}

void require_sealed(const support::Descriptor& memory, ByteCount bytes) {
  const int seals = require_fixed_seals(memory, bytes);
  if ((seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)) == 0) refuse_descriptor("is memory that its readers can write to");
}

ByteCount page_bytes() {
  static const auto size = static_cast<ByteCount>(::sysconf(_SC_PAGESIZE));
  return size;
}

ByteCount whole_pages(ByteCount bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

Mapping::Mapping(ByteCount bytes) {
  if (bytes == 0) return;
  const ByteCount slack = bytes < huge_page_bytes ? 0 : huge_page_bytes - page_bytes();
  void* const range = ::mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) refuse_memory(fmt::format("cannot reserve {} bytes of addresses", bytes));
  const ByteCount before = slack == 0 ? 0 : -reinterpret_cast<std::uintptr_t>(range) % huge_page_bytes;
  address_ = static_cast<std::byte*>(range) + before;
  bytes_ = bytes;
  if (before > 0) ::munmap(range, before);
  if (slack > before) ::munmap(address_ + bytes, slack - before);
}

Mapping::~Mapping() {
  if (address_ != nullptr) ::munmap(address_, bytes_);
}

void Mapping::map(ByteCount offset_bytes, ByteCount bytes, const support::Descriptor& memory, bool writable) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const at = address_ + offset_bytes;
  if (::mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED, memory.get(), 0) == MAP_FAILED) {
    refuse_memory(fmt::format("cannot map {} bytes of shared memory", bytes));
  }
}

void Mapping::unmap(ByteCount offset_bytes, ByteCount bytes) {
  constexpr int reserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (::mmap(address_ + offset_bytes, bytes, PROT_NONE, reserved, -1, 0) == MAP_FAILED) {
    refuse_memory(fmt::format("cannot unmap {} bytes of shared memory", bytes));
  }
}

}  // namespace shardwire::memory
