// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace shardwire::memory {

/// How a copy writes.
enum class Stores {
  cached,     ///< the target is read again soon
  streaming,  ///< past the caches, where runs are long enough: saves reading the target before it is overwritten
};

/// Runs shorter than this are written through the caches anyway: too much of them is unaligned head and tail.
inline constexpr std::size_t least_streamed_bytes = 1024;

/// memcpy with streaming stores; plain memcpy where the processor has none. Follow with stream_fence() before another
/// thread is told that the bytes are there.
void stream(std::byte* target, const std::byte* source, std::size_t size);
void stream_fence();

}  // namespace shardwire::memory
