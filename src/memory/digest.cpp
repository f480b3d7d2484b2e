// SPDX-License-Identifier: Apache-2.0
#include "memory/digest.hpp"

#include <xxhash.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>

#include "memory/strided_copy.hpp"
#include "shardwire/error.hpp"

namespace shardwire::memory {
namespace {

// Shorter runs are collected first: an update of the hash state costs far more than a short memcpy.
constexpr ByteCount direct_run_bytes = 1024;

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    if (!state_ || XXH3_128bits_reset(state_.get()) != XXH_OK) {
      throw Error(ErrorCode::out_of_resources, "no memory for a digest");
    }
  }
  void add_run(const std::byte* data, ByteCount size) {
    if (size < direct_run_bytes) {
      if (fill_ + size > buffer_.size()) flush();
      std::memcpy(buffer_.data() + fill_, data, size);
      fill_ += size;
      return;
    }
    flush();
    XXH3_128bits_update(state_.get(), data, size);
  }
  Digest128 finish() {
    flush();
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return {hash.low64, hash.high64};
  }

 private:
  void flush() {
    if (fill_ > 0) XXH3_128bits_update(state_.get(), buffer_.data(), fill_);
    fill_ = 0;
  }

  std::unique_ptr<XXH3_state_t, FreeState> state_;
  std::array<std::byte, 8 * direct_run_bytes> buffer_;
  std::size_t fill_ = 0;
};

}  // namespace

Digest128 digest_box(const Box& box, const PlacedBox& placed, const std::byte* base, ByteCount item_bytes) {
  // The packed side makes the order of the runs that of the box; nothing is copied there.
  const StridedCopy runs(box, placed, packed(box), item_bytes);
  Hasher hasher;
  runs.visit_rows(0, runs.runs(), [&](ByteCount from, ByteCount /*to*/, ByteCount count) {
    for (ByteCount run = 0; run < count; ++run) {
      hasher.add_run(base + from + run * runs.source_step(), runs.run_bytes());
    }
  });
  return hasher.finish();
}

Digest128 digest_of(std::span<const Digest128> digests) {
  const XXH128_hash_t hash = XXH3_128bits(digests.data(), digests.size_bytes());
  return {hash.low64, hash.high64};
}

Digest128 copy_and_digest(const Box& box, const PlacedBox& source, const PlacedBox& target, ByteCount item_bytes,
                          const std::byte* from, std::byte* to, Stores stores, double& digest_seconds) {
  StridedCopy(box, source, target, item_bytes).run_all(from, to, stores);
  const auto began = std::chrono::steady_clock::now();
  const Digest128 digest = digest_box(box, target, to, item_bytes);
  digest_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return digest;
}

}  // namespace shardwire::memory
