// SPDX-License-Identifier: Apache-2.0
#include "support/bytes.hpp"

#include <algorithm>
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

}  // namespace

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

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() ||
         (bytes.front() == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace shardwire::test
