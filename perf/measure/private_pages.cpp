// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/private_pages.hpp"

#include <sys/mman.h>

#include <new>

namespace shardwire::perf {

std::shared_ptr<std::byte> private_pages(ByteCount bytes) {
  if (bytes == 0) return nullptr;
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<std::byte*>(pages), [bytes](std::byte* mapped) { ::munmap(mapped, bytes); }};
}

}  // namespace shardwire::perf
