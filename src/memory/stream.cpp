// SPDX-License-Identifier: Apache-2.0
#include "memory/stream.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace shardwire::memory {
namespace {

#ifdef __SSE2__

template <Stores stores>
void copy_line(std::byte* target, const std::byte* source) {
  const auto* from = reinterpret_cast<const __m128i*>(source);
  auto* to = reinterpret_cast<__m128i*>(target);
  // All four are loaded before the first is stored, so that the line is written whole.
  const __m128i a = _mm_loadu_si128(from);
  const __m128i b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2);
  const __m128i d = _mm_loadu_si128(from + 3);
  if constexpr (stores == Stores::cached) {
    _mm_store_si128(to, a);
    _mm_store_si128(to + 1, b);
    _mm_store_si128(to + 2, c);
    return _mm_store_si128(to + 3, d);
  }
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

// Streaming stores are not ordered with later ones.
void fence() {
  _mm_sfence();
}

#else

template <Stores>
void copy_line(std::byte* target, const std::byte* source) {
  std::memcpy(target, source, line_bytes);
}
void fence() {
}

#endif

// Into the second level: there is room for all lanes, and far more of these may be under way than loads.
void prefetch_line(const std::byte* source) {
  __builtin_prefetch(source, 0, 2);
}

// Two lines of a lane at a time: the caches fetch such pairs.
constexpr std::size_t step_bytes = 2 * line_bytes;

template <Stores stores>
void copy_step(std::byte* target, const std::byte* source) {
  copy_line<stores>(target, source);
  copy_line<stores>(target + line_bytes, source + line_bytes);
}

}  // namespace

std::size_t RangeCopier::fewest_lines(const LineRun* parts, std::size_t count) {
  return std::min_element(parts, parts + count, [](const LineRun& a, const LineRun& b) { return a.lines < b.lines; })
      ->lines;
}

template <Stores stores>
void RangeCopier::copy_side_by_side(const LineRun* now, std::size_t count, const LineRun* next,
                                    std::size_t next_count) {
  const std::size_t common = fewest_lines(now, count) * line_bytes / step_bytes * step_bytes;
  const std::size_t ahead = next_count == 0 ? 0 : std::min(common, fewest_lines(next, next_count) * line_bytes);
  std::size_t at = 0;
  for (; at < ahead; at += step_bytes) {
    for (std::size_t lane = 0; lane < next_count; ++lane) {
      prefetch_line(next[lane].source + at);
      prefetch_line(next[lane].source + at + line_bytes);
    }
    for (std::size_t lane = 0; lane < count; ++lane) copy_step<stores>(now[lane].target + at, now[lane].source + at);
  }
  for (; at < common; at += step_bytes) {
    for (std::size_t lane = 0; lane < count; ++lane) copy_step<stores>(now[lane].target + at, now[lane].source + at);
  }
  for (std::size_t lane = 0; lane < count; ++lane) {
    for (std::size_t rest = at; rest < now[lane].lines * line_bytes; rest += line_bytes) {
      copy_line<stores>(now[lane].target + rest, now[lane].source + rest);
    }
  }
}

void RangeCopier::copy(const LineRun* now, std::size_t count, const LineRun* next, std::size_t next_count) const {
  switch (stores_) {
    case Stores::cached: return copy_side_by_side<Stores::cached>(now, count, next, next_count);
    case Stores::streaming: return copy_side_by_side<Stores::streaming>(now, count, next, next_count);
  }
}

void RangeCopier::copy_first_half() {
  copy(parts_.data(), lanes, parts_.data() + lanes, count_ - lanes);
  std::copy(parts_.begin() + lanes, parts_.end(), parts_.begin());
  count_ -= lanes;
}

void RangeCopier::finish() {
  if (count_ > lanes) copy_first_half();
  if (count_ > 0) copy(parts_.data(), count_, nullptr, 0);
  count_ = 0;
  if (stores_ == Stores::streaming) fence();
}

}  // namespace shardwire::memory
