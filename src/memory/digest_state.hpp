// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "memory/digest128.hpp"
#include "memory/tree_digest.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory {

/// Takes the digest of bytes that come one after the other.
class DigestState {
 public:
  /// Errors: throws Error{out_of_resources}.
  explicit DigestState(DigestKind kind);
  ~DigestState();
  DigestState(const DigestState&) = delete;
  DigestState& operator=(const DigestState&) = delete;

  void add(const std::byte* data, ByteCount size);
  /// Of all that was added. Nothing may be added afterwards.
  Digest128 finish();

 private:
  struct Hash;
  void add_to_leaves(const std::byte* data, ByteCount size);
  void end_leaf();

  DigestKind kind_;
  std::unique_ptr<Hash> hash_;
  ByteCount leaf_fill_ = 0;  ///< bytes of a leaf that are in the hash
  std::vector<Digest128> leaves_;
};

}  // namespace shardwire::memory
