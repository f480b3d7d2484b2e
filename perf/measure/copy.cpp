// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/copy.hpp"

#include <algorithm>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace shardwire::perf {

namespace {

using CopyRange = void (*)(std::byte* target, const std::byte* source, std::size_t size);

template <CopyRange copy_range>
void copy_around(std::span<const std::byte> source, std::span<std::byte> target) {
  while (!target.empty() && !source.empty()) {
    const std::size_t size = std::min(source.size(), target.size());
    copy_range(target.data(), source.data(), size);
    target = target.subspan(size);
  }
}

void copy_by_library(std::byte* target, const std::byte* source, std::size_t size) {
  std::memcpy(target, source, size);
}

// The C library selects its copy method by the size of a call.
void copy_by_slices(std::byte* target, const std::byte* source, std::size_t size) {
  constexpr std::size_t slice = 4u << 20;
  for (std::size_t at = 0; at < size; at += slice) std::memcpy(target + at, source + at, std::min(slice, size - at));
}

#ifdef __SSE2__
constexpr std::size_t line_bytes = 64;

void stream_line(std::byte* target, const std::byte* source) {
  const auto* from = reinterpret_cast<const __m128i*>(source);
  auto* to = reinterpret_cast<__m128i*>(target);
  // Load all before the first store, so that a line is written whole.
  const __m128i a = _mm_loadu_si128(from);
  const __m128i b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2);
  const __m128i d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

void copy_by_streaming(std::byte* target, const std::byte* source, std::size_t size) {
  const std::size_t whole = size / line_bytes * line_bytes;
  for (std::size_t at = 0; at < whole; at += line_bytes) stream_line(target + at, source + at);
  _mm_sfence();
  std::memcpy(target + whole, source + whole, size - whole);
}
#endif

}  // namespace

const std::vector<PlainCopy>& plain_copies() {
  static const std::vector<PlainCopy> copies{
      {"memcpy", copy_around<copy_by_library>},
      {"memcpy, 4 MiB", copy_around<copy_by_slices>},
#ifdef __SSE2__
      {"stream", copy_around<copy_by_streaming>},
#endif
  };
  return copies;
}

}  // namespace shardwire::perf
