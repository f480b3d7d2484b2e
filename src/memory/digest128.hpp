// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace shardwire::memory {

/// XXH3-128. Finds bytes that went astray; it is no protection against somebody who forges them.
struct Digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Digest128&) const = default;
};

/// How the bytes of a box are digested. Both sides of a move have to take the same one.
enum class DigestKind : std::uint8_t {
  flat,  ///< XXH3-128 of all, one byte after the other
  tree,  ///< see memory/tree_digest.hpp
};

}  // namespace shardwire::memory
