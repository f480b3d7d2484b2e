// SPDX-License-Identifier: Apache-2.0
#include "memory/digest.hpp"

#include <xxhash.h>
// After xxhash.h: it makes the same names choose instructions at run time, twice as fast where there is AVX2.
#include "memory/config.hpp"
#if SHARDWIRE_HAVE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>

#include "memory/strided_copy.hpp"
#include "shardwire/error.hpp"

namespace shardwire::memory {
namespace {

// Shorter runs are gathered first: an update of the hash state costs far more than a short memcpy, and runs that are
// gathered side by side arrive sooner than they would one by one.
constexpr ByteCount min_direct_bytes = 16384;
constexpr ByteCount min_digested_side_by_side = 256;

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
  void add(const std::byte* data, ByteCount size) {
    if (size >= min_direct_bytes) {
      flush();
      XXH3_128bits_update(state_.get(), data, size);
      return;
    }
    if (fill_ + size > gathered_.size()) flush();
    if (size >= min_digested_side_by_side) {
      copier_.add(gathered_.data() + fill_, data, size);
    } else {
      std::memcpy(gathered_.data() + fill_, data, size);
    }
    fill_ += size;
  }
  void add_runs(const std::byte* data, ByteCount count, ByteCount step, ByteCount size) {
    if (step == size) return add(data, count * size);
    for (ByteCount run = 0; run < count; ++run) add(data + run * step, size);
  }
  Digest128 finish() {
    flush();
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return {hash.low64, hash.high64};
  }

 private:
  void flush() {
    copier_.finish();
    if (fill_ > 0) XXH3_128bits_update(state_.get(), gathered_.data(), fill_);
    fill_ = 0;
  }

  std::unique_ptr<XXH3_state_t, FreeState> state_;
  RangeCopier copier_{Stores::cached};
  alignas(line_bytes) std::array<std::byte, 2 * min_direct_bytes> gathered_;
  std::size_t fill_ = 0;
};

// What is written through the caches is read again from there; what is streamed comes back from memory in any case, and
// longer batches keep more misses under way.
ByteCount batch_bytes(Stores stores) {
  return stores == Stores::cached ? 64u << 10 : 1u << 20;
}

// Adds the time that it lives.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void copy_long_run(const std::byte* source, std::byte* target, ByteCount size, Stores stores, Hasher& hasher,
                   double& digest_seconds) {
  RangeCopier copier(stores);
  for (ByteCount at = 0; at < size; at += batch_bytes(stores)) {
    const ByteCount part = std::min(batch_bytes(stores), size - at);
    copier.add(target + at, source + at, part);
    copier.finish();
    const Stopwatch watch(digest_seconds);
    hasher.add(target + at, part);
  }
}

}  // namespace

Digest128 digest_box(const Box& box, const PlacedBox& placed, const std::byte* base, ByteCount item_bytes) {
  // The packed side makes the order of the runs that of the box; nothing is copied there.
  const StridedCopy runs(box, placed, packed(box), item_bytes);
  Hasher hasher;
  runs.visit_rows(0, runs.runs(), [&](ByteCount from, ByteCount /*to*/, ByteCount count) {
    hasher.add_runs(base + from, count, runs.source_step(), runs.run_bytes());
  });
  return hasher.finish();
}

Digest128 digest_of(std::span<const Digest128> digests) {
  const XXH128_hash_t hash = XXH3_128bits(digests.data(), digests.size_bytes());
  return {hash.low64, hash.high64};
}

Digest128 copy_and_digest(const StridedCopy& copy, const std::byte* source, std::byte* target, Stores stores,
                          double& digest_seconds) {
  Hasher hasher;
  if (copy.run_bytes() > batch_bytes(stores)) {
    copy.visit_rows(0, copy.runs(), [&](ByteCount from, ByteCount to, ByteCount count) {
      for (ByteCount run = 0; run < count; ++run) {
        copy_long_run(source + from + run * copy.source_step(), target + to + run * copy.target_step(),
                      copy.run_bytes(), stores, hasher, digest_seconds);
      }
    });
    return hasher.finish();
  }
  const ByteCount batch = batch_bytes(stores) / std::max<ByteCount>(1, copy.run_bytes());
  for (ByteCount first = 0; first < copy.runs(); first += batch) {
    const ByteCount count = std::min(batch, copy.runs() - first);
    copy.run(source, target, first, count, stores);
    const Stopwatch watch(digest_seconds);
    copy.visit_rows(first, count, [&](ByteCount /*from*/, ByteCount to, ByteCount runs) {
      hasher.add_runs(target + to, runs, copy.target_step(), copy.run_bytes());
    });
  }
  return hasher.finish();
}

Digest128 copy_and_digest(const Box& box, const PlacedBox& source, const PlacedBox& target, ByteCount item_bytes,
                          const std::byte* from, std::byte* to, Stores stores, double& digest_seconds) {
  return copy_and_digest(StridedCopy(box, source, target, item_bytes), from, to, stores, digest_seconds);
}

}  // namespace shardwire::memory
