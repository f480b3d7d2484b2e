// SPDX-License-Identifier: Apache-2.0
// Outline: lines, per instruction set; loops over lines; kernels; their table.
#include "memory/kernels.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace shardwire::memory {
namespace {

// Lines. A line is loaded completely before it is stored, so that it leaves the processor whole.

using CopyLine = void (*)(const LineRun& run, std::size_t at);

inline void line_by_memcpy(const LineRun& run, std::size_t at) {
  copy_bytes(run.target + at, run.source + at, line_bytes, run.kept == nullptr ? nullptr : run.kept + at);
}

#if defined(__x86_64__)

inline void line_by_sse2(const LineRun& run, std::size_t at) {
  const auto* source = reinterpret_cast<const __m128i*>(run.source + at);
  const __m128i a = _mm_loadu_si128(source);
  const __m128i b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2);
  const __m128i d = _mm_loadu_si128(source + 3);
  auto* target = reinterpret_cast<__m128i*>(run.target + at);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
  if (run.kept == nullptr) return;
  auto* kept = reinterpret_cast<__m128i*>(run.kept + at);
  _mm_storeu_si128(kept, a);
  _mm_storeu_si128(kept + 1, b);
  _mm_storeu_si128(kept + 2, c);
  _mm_storeu_si128(kept + 3, d);
}

[[gnu::target("avx2")]] inline void line_by_avx2(const LineRun& run, std::size_t at) {
  const auto* source = reinterpret_cast<const __m256i*>(run.source + at);
  const __m256i a = _mm256_loadu_si256(source);
  const __m256i b = _mm256_loadu_si256(source + 1);
  auto* target = reinterpret_cast<__m256i*>(run.target + at);
  _mm256_stream_si256(target, a);
  _mm256_stream_si256(target + 1, b);
  if (run.kept == nullptr) return;
  auto* kept = reinterpret_cast<__m256i*>(run.kept + at);
  _mm256_storeu_si256(kept, a);
  _mm256_storeu_si256(kept + 1, b);
}

[[gnu::target("avx512f")]] inline void line_by_avx512(const LineRun& run, std::size_t at) {
  const __m512i line = _mm512_loadu_si512(run.source + at);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(run.target + at), line);
  if (run.kept != nullptr) _mm512_storeu_si512(run.kept + at, line);
}

#elif defined(__aarch64__)

// There are no intrinsics for streaming stores.
inline void stream_pair(std::byte* target, uint8x16_t a, uint8x16_t b) {
  asm volatile("stnp %q[a], %q[b], [%[target]]" : : [a] "w"(a), [b] "w"(b), [target] "r"(target) : "memory");
}

inline void line_by_neon(const LineRun& run, std::size_t at) {
  const auto* source = reinterpret_cast<const std::uint8_t*>(run.source + at);
  const uint8x16_t a = vld1q_u8(source);
  const uint8x16_t b = vld1q_u8(source + 16);
  const uint8x16_t c = vld1q_u8(source + 32);
  const uint8x16_t d = vld1q_u8(source + 48);
  stream_pair(run.target + at, a, b);
  stream_pair(run.target + at + 32, c, d);
  if (run.kept == nullptr) return;
  auto* kept = reinterpret_cast<std::uint8_t*>(run.kept + at);
  vst1q_u8(kept, a);
  vst1q_u8(kept + 16, b);
  vst1q_u8(kept + 32, c);
  vst1q_u8(kept + 48, d);
}

#endif

// Loops. Each is written once and inlined into kernels that are compiled for instructions which the rest of the library
// must not use: hence "always inline".

template <CopyLine copy_line>
[[gnu::always_inline]] inline void one_by_one(std::span<const LineRun> now) {
  for (const LineRun run : now) {
    for (std::size_t at = 0; at < run.lines * line_bytes; at += line_bytes) copy_line(run, at);
  }
}

[[gnu::always_inline]] inline std::size_t shortest_bytes(std::span<const LineRun> runs) {
  std::size_t lines = SIZE_MAX / line_bytes;
  for (const LineRun& run : runs) lines = std::min(lines, run.lines);
  return lines * line_bytes;
}

enum class Prefetch { none, next };

// Two lines at a time: the caches fetch such pairs. Prefetches go to the second level: it has room for all runs, and
// allows far more of them under way than loads. On processors whose prefetchers follow eight runs, they only cost time.
template <CopyLine copy_line, Prefetch prefetch>
[[gnu::always_inline]] inline void interleaved(std::span<const LineRun> now, std::span<const LineRun> next) {
  constexpr std::size_t step = 2 * line_bytes;
  const std::size_t common = shortest_bytes(now) / step * step;
  const std::size_t ahead = prefetch == Prefetch::none || next.empty() ? 0 : std::min(common, shortest_bytes(next));
  for (std::size_t at = 0; at < common; at += step) {
    if (at < ahead) {
      for (const LineRun run : next) {
        __builtin_prefetch(run.source + at, 0, 2);
        __builtin_prefetch(run.source + at + line_bytes, 0, 2);
      }
    }
    for (const LineRun run : now) {
      copy_line(run, at);
      copy_line(run, at + line_bytes);
    }
  }
  for (const LineRun run : now) {
    for (std::size_t at = common; at < run.lines * line_bytes; at += line_bytes) copy_line(run, at);
  }
}

// Kernels.

void copy_by_memcpy(std::span<const LineRun> now, std::span<const LineRun> /*next*/) {
  for (const LineRun run : now) copy_bytes(run.target, run.source, run.lines * line_bytes, run.kept);
}
void copy_by_memcpy_interleaved(std::span<const LineRun> now, std::span<const LineRun> next) {
  interleaved<line_by_memcpy, Prefetch::next>(now, next);
}

bool nothing_needed() {
  return true;
}

#if defined(__x86_64__)

void copy_by_sse2(std::span<const LineRun> now, std::span<const LineRun> /*next*/) {
  one_by_one<line_by_sse2>(now);
}
void copy_by_sse2_interleaved(std::span<const LineRun> now, std::span<const LineRun> next) {
  interleaved<line_by_sse2, Prefetch::next>(now, next);
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0;
}
[[gnu::target("avx2")]] void copy_by_avx2(std::span<const LineRun> now, std::span<const LineRun> /*next*/) {
  one_by_one<line_by_avx2>(now);
}
[[gnu::target("avx2")]] void copy_by_avx2_unprefetched(std::span<const LineRun> now, std::span<const LineRun> next) {
  interleaved<line_by_avx2, Prefetch::none>(now, next);
}
[[gnu::target("avx2")]] void copy_by_avx2_interleaved(std::span<const LineRun> now, std::span<const LineRun> next) {
  interleaved<line_by_avx2, Prefetch::next>(now, next);
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0;
}
[[gnu::target("avx512f")]] void copy_by_avx512(std::span<const LineRun> now, std::span<const LineRun> /*next*/) {
  one_by_one<line_by_avx512>(now);
}
[[gnu::target("avx512f")]] void copy_by_avx512_unprefetched(std::span<const LineRun> now,
                                                            std::span<const LineRun> next) {
  interleaved<line_by_avx512, Prefetch::none>(now, next);
}
[[gnu::target("avx512f")]] void copy_by_avx512_interleaved(std::span<const LineRun> now,
                                                           std::span<const LineRun> next) {
  interleaved<line_by_avx512, Prefetch::next>(now, next);
}

#elif defined(__aarch64__)

void copy_by_neon(std::span<const LineRun> now, std::span<const LineRun> /*next*/) {
  one_by_one<line_by_neon>(now);
}
void copy_by_neon_unprefetched(std::span<const LineRun> now, std::span<const LineRun> next) {
  interleaved<line_by_neon, Prefetch::none>(now, next);
}
void copy_by_neon_interleaved(std::span<const LineRun> now, std::span<const LineRun> next) {
  interleaved<line_by_neon, Prefetch::next>(now, next);
}

#endif

// A new kernel needs a function above and a line here.
constexpr CopyKernel kernels[] = {
#if defined(__x86_64__)
    {"avx512", Stores::streaming, "avx512f", has_avx512, copy_by_avx512},
    {"avx512-interleaved", Stores::streaming, "avx512f", has_avx512, copy_by_avx512_interleaved},
    {"avx512-unprefetched", Stores::streaming, "avx512f", has_avx512, copy_by_avx512_unprefetched},
    {"avx2", Stores::streaming, "avx2", has_avx2, copy_by_avx2},
    {"avx2-interleaved", Stores::streaming, "avx2", has_avx2, copy_by_avx2_interleaved},
    {"avx2-unprefetched", Stores::streaming, "avx2", has_avx2, copy_by_avx2_unprefetched},
    {"sse2", Stores::streaming, "", nothing_needed, copy_by_sse2},
    {"sse2-interleaved", Stores::streaming, "", nothing_needed, copy_by_sse2_interleaved},
#elif defined(__aarch64__)
    {"neon", Stores::streaming, "", nothing_needed, copy_by_neon},
    {"neon-interleaved", Stores::streaming, "", nothing_needed, copy_by_neon_interleaved},
    {"neon-unprefetched", Stores::streaming, "", nothing_needed, copy_by_neon_unprefetched},
#endif
    {"memcpy", Stores::cached, "", nothing_needed, copy_by_memcpy},
    {"memcpy-interleaved", Stores::cached, "", nothing_needed, copy_by_memcpy_interleaved},
};

}  // namespace

std::span<const CopyKernel> copy_kernels() {
  return kernels;
}

const CopyKernel& cached_kernel() {
  return std::end(kernels)[-1];
}

void store_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#elif defined(__aarch64__)
  asm volatile("dmb ishst" : : : "memory");
#endif
}

}  // namespace shardwire::memory
