// SPDX-License-Identifier: Apache-2.0
#include "memory/stream.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace shardwire::memory {

#ifdef __SSE2__

void stream(std::byte* target, const std::byte* source, std::size_t size) {
  constexpr std::size_t line = 64;
  const std::size_t head = std::min(size, (line - reinterpret_cast<std::uintptr_t>(target) % line) % line);
  std::memcpy(target, source, head);
  target += head;
  source += head;
  size -= head;
  const std::size_t whole = size / line * line;
  for (std::size_t at = 0; at < whole; at += line) {
    const auto* from = reinterpret_cast<const __m128i*>(source + at);
    auto* to = reinterpret_cast<__m128i*>(target + at);
    // All four are loaded before the first is stored, so that the line is written whole.
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(target + whole, source + whole, size - whole);
}

void stream_fence() {
  _mm_sfence();
}

#else

void stream(std::byte* target, const std::byte* source, std::size_t size) {
  std::memcpy(target, source, size);
}
void stream_fence() {
}

#endif

}  // namespace shardwire::memory
