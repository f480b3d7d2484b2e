// SPDX-License-Identifier: Apache-2.0
#include "memory/digest_state.hpp"

#include <xxhash.h>
// Include it after xxhash.h: it makes the same names select instructions at run time, twice as fast with AVX2.
#include "memory/config.hpp"
#if SHARDWIRE_HAVE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#include <algorithm>
#include <bit>
#include <span>

#include "memory/digest.hpp"
#include "shardwire/error.hpp"

namespace shardwire::memory {

// The digests of leaves are digested in their memory representation.
static_assert(std::endian::native == std::endian::little && sizeof(Digest128) == 16);

namespace {

Digest128 digest_bytes(const void* data, std::size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  return {hash.low64, hash.high64};
}

}  // namespace

struct DigestState::Hash {
  Hash() : state(XXH3_createState()) {
    if (state == nullptr) throw Error(ErrorCode::out_of_resources, "no memory for a digest");
    reset();
  }
  ~Hash() { XXH3_freeState(state); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  void reset() const { XXH3_128bits_reset(state); }
  void add(const std::byte* data, ByteCount size) const {
    if (size > 0) XXH3_128bits_update(state, data, size);
  }
  [[nodiscard]] Digest128 digest() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state);
    return {hash.low64, hash.high64};
  }

  XXH3_state_t* const state;
};

DigestState::DigestState() : hash_(std::make_unique<Hash>()) {
}

DigestState::~DigestState() = default;

void DigestState::add(const std::byte* data, ByteCount size) {
  while (size > 0) {
    const ByteCount part = std::min(size, leaf_bytes - leaf_fill_);
    if (part == leaf_bytes) {
      leaves_.push_back(digest_bytes(data, part));  // in place: a state would copy some of it
    } else {
      hash_->add(data, part);
      leaf_fill_ += part;
      if (leaf_fill_ == leaf_bytes) end_leaf();
    }
    data += part;
    size -= part;
  }
}

void DigestState::end_leaf() {
  leaves_.push_back(hash_->digest());
  hash_->reset();
  leaf_fill_ = 0;
}

Digest128 DigestState::finish() {
  if (leaf_fill_ > 0) end_leaf();
  return digest_of(leaves_);
}

Digest128 digest_of(std::span<const Digest128> digests) {
  return digest_bytes(digests.data(), digests.size_bytes());
}

}  // namespace shardwire::memory
