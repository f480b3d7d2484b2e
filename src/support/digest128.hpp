// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace shardwire {

/// Digest of a box: a tree of XXH3-128 (memory/tree_digest.hpp). Detects corrupted bytes; it does not protect against
/// forgery.
struct Digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Digest128&) const = default;
};

}  // namespace shardwire
