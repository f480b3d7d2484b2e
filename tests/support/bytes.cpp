// SPDX-License-Identifier: Apache-2.0
#include "support/bytes.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace shardwire::test {

namespace {

constexpr std::size_t period = 65521;

std::vector<std::byte> pattern_of(std::uint8_t seed) {
  std::vector<std::byte> piece(period);
  for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<std::byte>(i * 7 + (i >> 8) * 13 + seed);
  return piece;
}

// Each store into memory that nobody else has yet: to check them would take a sanitizer most of the time of some tests.
__attribute__((no_sanitize("address", "thread", "undefined"))) void fill_words(std::byte* to, std::size_t words,
                                                                               std::uint64_t& state) {
  for (std::size_t i = 0; i < words; ++i, to += sizeof state) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::memcpy(to, &state, sizeof state);
  }
}

}  // namespace

Bytes pattern(std::size_t size, std::uint64_t seed) {
  Bytes out(size);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  const std::size_t words = size / sizeof state;
  fill_words(out.data(), words, state);
  if (const std::size_t rest = size % sizeof state; rest > 0) {
    std::array<std::byte, sizeof state> last{};
    fill_words(last.data(), 1, state);
    std::memcpy(out.data() + words * sizeof state, last.data(), rest);
  }
  return out;
}

// Copies whole pieces: under a sanitizer, a loop over bytes would exceed the deadlines of tests.
void fill_pattern(std::span<std::byte> bytes, std::uint8_t seed) {
  const std::vector<std::byte> piece = pattern_of(seed);
  for (std::size_t at = 0; at < bytes.size(); at += period) {
    std::memcpy(bytes.data() + at, piece.data(), std::min(period, bytes.size() - at));
  }
}

bool has_pattern(std::span<const std::byte> bytes, std::uint8_t seed) {
  const std::vector<std::byte> piece = pattern_of(seed);
  for (std::size_t at = 0; at < bytes.size(); at += period) {
    if (std::memcmp(bytes.data() + at, piece.data(), std::min(period, bytes.size() - at)) != 0) return false;
  }
  return true;
}

bool same_bytes(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.size() == other.size() && (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
}

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() ||
         (bytes.front() == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace shardwire::test
