// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>

namespace shardwire::memory {

inline constexpr std::size_t line_bytes = 64;

/// How a copy writes.
enum class Stores {
  cached,     ///< the target is read again soon
  streaming,  ///< past the caches, where runs are long enough: saves reading the target before it is overwritten
};

/// A range whose target begins and ends with a cache line; the source may lie anywhere.
struct LineRun {
  const std::byte* source;
  std::byte* target;
  std::byte* kept;  ///< gets the very bytes that the target gets, through the caches; may be null, may lie anywhere
  std::size_t lines;
};

/// Copies the runs of `now`. Those of `next` come with the following call: a kernel may prefetch them.
/// Requires: nothing overlaps. Threads: any. Streaming stores of a kernel are not ordered with later ones: see
/// store_fence().
using CopyRuns = void (*)(std::span<const LineRun> now, std::span<const LineRun> next);

/// One way of copying bytes in memory. Which is the fastest depends on the processor and on the length of runs.
struct CopyKernel {
  std::string_view name;
  Stores stores;
  std::string_view feature;  ///< of the processor; empty: none is needed
  bool (*has_feature)();
  CopyRuns copy;
};

/// All that are compiled for this kind of processor, whether this one has what they need or not. The first that has is
/// the best guess while nothing has been measured.
std::span<const CopyKernel> copy_kernels();

/// Copies through the caches, for targets that are read again soon.
const CopyKernel& cached_kernel();

/// Copies through the caches; where something is to be kept, the target gets what was kept: the source is read once, and
/// may change.
inline void copy_bytes(std::byte* target, const std::byte* source, std::size_t size, std::byte* kept) {
  if (kept != nullptr) {
    source = static_cast<std::byte*>(std::memcpy(kept, source, size));
    asm volatile("" : : : "memory");  // or compilers see that both are the same
  }
  std::memcpy(target, source, size);
}

/// Orders streaming stores before whatever is stored afterwards.
void store_fence();

}  // namespace shardwire::memory
