// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Definitions for source code shared by host and device. Kernels include these headers, and so do tests that run the
// same code on a processor.
#if defined(__CUDACC__)
#define SHARDWIRE_HOST_DEVICE __host__ __device__
#define SHARDWIRE_UNROLL _Pragma("unroll")
#define SHARDWIRE_NO_UNROLL _Pragma("unroll 1")
#define SHARDWIRE_NOINLINE __noinline__
#else
#define SHARDWIRE_HOST_DEVICE
#define SHARDWIRE_UNROLL
#define SHARDWIRE_NO_UNROLL
#define SHARDWIRE_NOINLINE [[gnu::noinline]]
#endif

// A table inside a function with dynamic indices: a device would otherwise build it in each thread's stack.
#if defined(__CUDA_ARCH__)
#define SHARDWIRE_CONSTANT static __constant__ const
#else
#define SHARDWIRE_CONSTANT constexpr
#endif

namespace shardwire::memory {

/// 16 bytes that are loaded and stored at once.
struct alignas(16) Vector16 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

/// Requires: `from` is aligned for T. On a device: global memory, read once.
template <typename T>
SHARDWIRE_HOST_DEVICE inline T load(const std::byte* from) {
#if defined(__CUDA_ARCH__)
  // The compiler does not know that a pointer from a table refers to global memory; these instructions state it.
  if constexpr (sizeof(T) == sizeof(Vector16)) {
    const ulonglong2 value = __ldcs(reinterpret_cast<const ulonglong2*>(from));
    return {value.x, value.y};
  } else if constexpr (sizeof(T) == 8) {
    return __ldcs(reinterpret_cast<const unsigned long long*>(from));
  } else {
    return __ldcs(reinterpret_cast<const T*>(from));
  }
#else
  assert(reinterpret_cast<std::uintptr_t>(from) % sizeof(T) == 0);  // a misaligned access is fatal on a device
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
#endif
}

/// As load().
template <typename T>
SHARDWIRE_HOST_DEVICE inline void store(std::byte* to, const T& value) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(to));
  if constexpr (sizeof(T) == sizeof(Vector16)) {
    *reinterpret_cast<ulonglong2*>(to) = {value.low, value.high};
  } else {
    *reinterpret_cast<T*>(to) = value;
  }
#else
  assert(reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0);
  std::memcpy(to, &value, sizeof(T));
#endif
}

}  // namespace shardwire::memory
