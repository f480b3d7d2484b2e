// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "memory/tree_digest.hpp"
#include "shardwire/types.hpp"
#include "support/digest128.hpp"

namespace shardwire::memory {

/// Computes the tree digest of consecutive bytes.
class DigestState {
 public:
  /// Errors: throws Error{out_of_resources}.
  DigestState();
  ~DigestState();
  DigestState(const DigestState&) = delete;
  DigestState& operator=(const DigestState&) = delete;

  void add(const std::byte* data, ByteCount size);
  /// Digest of all added bytes. Nothing may be added afterwards.
  Digest128 finish();

 private:
  struct Hash;
  void end_leaf();

  std::unique_ptr<Hash> hash_;
  ByteCount leaf_fill_ = 0;  ///< bytes of the current leaf that are in the hash
  std::vector<Digest128> leaves_;
};

}  // namespace shardwire::memory
