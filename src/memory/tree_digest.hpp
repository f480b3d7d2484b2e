// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/types.hpp"

// A digest of many bytes that can be computed in parallel: XXH3-128 of each leaf, a fixed number of bytes of the
// row-major order of a box, fewer in the last one; then XXH3-128 of the leaves' digests (little-endian, low before
// high). The digest of no bytes is that of no leaves.
namespace shardwire::memory {

inline constexpr ByteCount leaf_bytes = 64u << 10;

constexpr ByteCount leaves_of(ByteCount bytes) {
  return bytes / leaf_bytes + (bytes % leaf_bytes > 0 ? 1 : 0);
}

}  // namespace shardwire::memory
