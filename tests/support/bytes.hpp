// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shardwire/types.hpp"

namespace shardwire::test {

/// Fills `bytes` with a pattern that depends on the seed. Its period is a prime number of bytes, so that tests detect
/// bytes shifted by any power of two.
void fill_pattern(std::span<std::byte> bytes, std::uint8_t seed);
[[nodiscard]] bool has_pattern(std::span<const std::byte> bytes, std::uint8_t seed);

/// Bytes that depend on position and seed, and do not repeat.
[[nodiscard]] Bytes pattern(std::size_t size, std::uint64_t seed = 1);

/// Whether both are the same bytes. std::equal compares byte by byte, and a sanitizer looks at each.
[[nodiscard]] bool same_bytes(std::span<const std::byte> one, std::span<const std::byte> other);

/// Whether each of `bytes` is `value`.
[[nodiscard]] bool all_are(std::span<const std::byte> bytes, std::byte value);

}  // namespace shardwire::test
