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
  streaming,  ///< bypasses the caches for long runs: saves reading the target before it is overwritten
};

/// A range whose target begins and ends at a cache line; the source may have any alignment.
struct LineRun {
  const std::byte* source;
  std::byte* target;
  std::byte* kept;  ///< receives the same bytes as the target, through the caches; may be null, any alignment
  std::size_t lines;
};

/// Copies the runs of `now`. The following call passes the runs of `next`: a kernel may prefetch them.
/// Requires: nothing overlaps. Threads: any. Streaming stores of a kernel are not ordered with later ones: see
///           store_fence().
using CopyRuns = void (*)(std::span<const LineRun> now, std::span<const LineRun> next);

/// An algorithm for copying bytes in memory. The fastest depends on the processor and on the length of runs.
struct CopyKernel {
  std::string_view name;
  Stores stores;
  std::string_view feature;  ///< of the processor; empty: none required
  bool (*has_feature)();
  CopyRuns copy;
};

/// All kernels compiled for this architecture, whether or not this processor has the required feature. The first one
/// that it can run is the best guess before any measurement.
std::span<const CopyKernel> copy_kernels();

/// Copies through the caches, for targets that are read again soon.
const CopyKernel& cached_kernel();

/// Copies through the caches. With `kept`, the target receives the kept bytes: the source is read once, and may change.
inline void copy_bytes(std::byte* target, const std::byte* source, std::size_t size, std::byte* kept) {
  if (kept != nullptr) {
    source = static_cast<std::byte*>(std::memcpy(kept, source, size));
    asm volatile("" : : : "memory");  // prevents compilers from assuming that both are equal
  }
  std::memcpy(target, source, size);
}

/// Orders earlier streaming stores before all later stores.
void store_fence();

}  // namespace shardwire::memory
