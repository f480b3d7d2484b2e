// SPDX-License-Identifier: Apache-2.0
#include "memory/digest.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>

#include "memory/digest_state.hpp"
#include "memory/strided_copy.hpp"

namespace shardwire::memory {
namespace {

// Shorter runs are gathered first: an update of the hash state costs far more than a short memcpy, and runs gathered in
// parallel load sooner than one by one.
constexpr ByteCount min_direct_bytes = 16384;
constexpr ByteCount min_digested_side_by_side = 256;

class Hasher {
 public:
  void add(const std::byte* data, ByteCount size) {
    if (size >= min_direct_bytes) return add_direct(data, size);
    if (fill_ + size > gathered_.size()) flush();
    if (size >= min_digested_side_by_side) {
      copier_.add(gathered_.data() + fill_, data, size);
    } else {
      std::memcpy(gathered_.data() + fill_, data, size);
    }
    fill_ += size;
  }
  void add_direct(const std::byte* data, ByteCount size) {
    flush();
    state_.add(data, size);
  }
  void add_runs(const std::byte* data, ByteCount count, ByteCount step, ByteCount size) {
    if (step == size) return add(data, count * size);
    for (ByteCount run = 0; run < count; ++run) add(data + run * step, size);
  }
  Digest128 finish() {
    flush();
    return state_.finish();
  }

 private:
  void flush() {
    copier_.finish();
    state_.add(gathered_.data(), fill_);
    fill_ = 0;
  }

  DigestState state_;
  RangeCopier copier_{cached_kernel()};
  alignas(line_bytes) std::array<std::byte, 2 * min_direct_bytes> gathered_;
  std::size_t fill_ = 0;
};

// Read again from the second-level cache.
constexpr ByteCount cached_batch_bytes = 64u << 10;
// As many parts as kernels copy in parallel.
constexpr ByteCount streamed_batch_bytes = 8 * RangeCopier::part_bytes;

// Adds its lifetime to a counter.
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

// For streaming copies, bytes are digested as they pass: kernels keep a copy of what they store, from the same
// registers. Reading the target again would take as long as the copy.
class DigestingCopier {
 public:
  DigestingCopier(const StridedCopy& copy, double& digest_seconds)
      : copier_(kernel_choice(), CopyClass(copy.run_bytes(), true), copy.bytes()),
        kept_(std::make_unique_for_overwrite<std::byte[]>(std::min(copy.bytes(), streamed_batch_bytes))),
        digest_seconds_(digest_seconds) {}

  void add(std::byte* target, const std::byte* source, ByteCount size) {
    while (size > 0) {
      // Ends at a cache line of the target; otherwise that line would be written in two steps.
      const ByteCount part =
          std::min<ByteCount>(size, RangeCopier::part_bytes - reinterpret_cast<std::uintptr_t>(target) % line_bytes);
      if (fill_ + part > streamed_batch_bytes) flush();
      copier_.add(target, source, part, kept_.get() + fill_);
      fill_ += part;
      target += part;
      source += part;
      size -= part;
    }
  }
  Digest128 finish() {
    flush();
    return hasher_.finish();
  }

 private:
  void flush() {
    copier_.finish();
    const Stopwatch watch(digest_seconds_);
    hasher_.add_direct(kept_.get(), fill_);
    fill_ = 0;
  }

  Hasher hasher_;
  StreamingCopier copier_;
  std::unique_ptr<std::byte[]> kept_;
  ByteCount fill_ = 0;
  double& digest_seconds_;
};

Digest128 stream_and_digest(const StridedCopy& copy, const std::byte* source, std::byte* target,
                            double& digest_seconds) {
  DigestingCopier copier(copy, digest_seconds);
  copy.visit_rows(0, copy.runs(), [&](ByteCount from, ByteCount to, ByteCount runs) {
    for (ByteCount run = 0; run < runs; ++run) {
      copier.add(target + to + run * copy.target_step(), source + from + run * copy.source_step(), copy.run_bytes());
    }
  });
  return copier.finish();
}

void copy_long_run(const std::byte* source, std::byte* target, ByteCount size, Hasher& hasher, double& digest_seconds) {
  RangeCopier copier(cached_kernel());
  for (ByteCount at = 0; at < size; at += cached_batch_bytes) {
    const ByteCount part = std::min(cached_batch_bytes, size - at);
    copier.add(target + at, source + at, part);
    copier.finish();
    const Stopwatch watch(digest_seconds);
    hasher.add(target + at, part);
  }
}

}  // namespace

Digest128 digest_box(const Box& box, const PlacedBox& placed, const std::byte* base, ByteCount item_bytes) {
  // The packed side puts the runs in the order of the box; nothing is copied there.
  return digest_runs(StridedCopy(box, placed, packed(box), item_bytes), base);
}

Digest128 digest_runs(const StridedCopy& copy, const std::byte* source) {
  Hasher hasher;
  copy.visit_rows(0, copy.runs(), [&](ByteCount from, ByteCount /*to*/, ByteCount count) {
    hasher.add_runs(source + from, count, copy.source_step(), copy.run_bytes());
  });
  return hasher.finish();
}

Digest128 copy_and_digest(const StridedCopy& copy, const std::byte* source, std::byte* target, Stores stores,
                          double& digest_seconds) {
  if (stores == Stores::streaming && copy.is_streamed(target)) {
    return stream_and_digest(copy, source, target, digest_seconds);
  }
  Hasher hasher;
  if (copy.run_bytes() > cached_batch_bytes) {
    copy.visit_rows(0, copy.runs(), [&](ByteCount from, ByteCount to, ByteCount count) {
      for (ByteCount run = 0; run < count; ++run) {
        copy_long_run(source + from + run * copy.source_step(), target + to + run * copy.target_step(),
                      copy.run_bytes(), hasher, digest_seconds);
      }
    });
    return hasher.finish();
  }
  const ByteCount batch = cached_batch_bytes / std::max<ByteCount>(1, copy.run_bytes());
  for (ByteCount first = 0; first < copy.runs(); first += batch) {
    const ByteCount count = std::min(batch, copy.runs() - first);
    copy.run(source, target, first, count);
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
