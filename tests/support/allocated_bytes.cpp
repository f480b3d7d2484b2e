// SPDX-License-Identifier: Apache-2.0
// Replaces the global operator new of the test program with one that counts bytes.
#include "support/allocated_bytes.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::uint64_t> allocated = 0;
}  // namespace

std::uint64_t shardwire::test::allocated_bytes() {
  return allocated;
}

// Not inlined: the compiler would warn about free() of memory from new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocated += size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
// A sanitizer's own version would not match the operator delete below.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  allocated += size;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
