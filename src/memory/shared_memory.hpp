// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "memory/page_placement.hpp"
#include "memory/sealed_memory.hpp"
#include "shardwire/types.hpp"
#include "support/descriptors.hpp"

namespace shardwire::memory {

/// Chunks grow if there would be more.
inline constexpr std::size_t max_chunks = 64;
inline constexpr ByteCount smallest_chunk_bytes = ByteCount{256} << 20;
/// Requires: the size fits into the address space.
ByteCount chunk_bytes_for(ByteCount bytes);
ByteCount chunk_count(ByteCount bytes, ByteCount chunk_bytes);
/// Whole pages; the last chunk holds the remainder.
ByteCount bytes_of_chunk(ByteCount index, ByteCount bytes, ByteCount chunk_bytes);

/// Memory that other processes map by its descriptors: writable by those that had it before it was sealed, readable by all
/// others. It consists of chunks, so that whole chunks can be returned to the system. It lasts as long as anybody has a
/// descriptor or a mapping of it.
/// Threads: any.
class SharedMemory {
 public:
  enum class Pages : std::uint8_t {
    on_touch,
    at_once,  ///< accounted to this process before the constructor returns
  };
  /// New memory, not sealed against writers yet. `placement` is a wish: see misplaced().
  /// Requires: the size fits into the address space. Errors: throws Error{out_of_resources}.
  SharedMemory(ByteCount bytes, Pages pages, const PagePlacement& placement = {});
  /// Memory that another process has made and not sealed against writers; maps it writable.
  /// Errors: throws Error{transport_failed} for descriptors that are not such memory of that size.
  SharedMemory(ByteCount bytes, std::vector<support::Descriptor> chunks);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Forbids new writable mappings; those that exist stay. Errors: throws Error{out_of_resources} on a kernel before 5.1.
  void seal();
  /// Errors: throws Error{transport_failed} unless all chunks are sealed.
  void require_sealed() const;

  [[nodiscard]] std::byte* address() const { return mapping_.address(); }
  [[nodiscard]] ByteCount bytes() const { return bytes_; }
  [[nodiscard]] ByteCount chunk_bytes() const { return chunk_bytes_; }
  /// Of each chunk that was not discarded. Borrowed.
  [[nodiscard]] std::vector<int> descriptors() const;
  /// One bit per chunk, set if it was not discarded.
  [[nodiscard]] std::uint64_t present() const;
  /// Returns whole chunks inside the range to the system, unless another process has them mapped. Result: their bytes,
  /// which must not be accessed any more.
  ByteCount discard(ByteCount offset_bytes, ByteCount bytes);
  /// Whether no part of the range was discarded.
  [[nodiscard]] bool holds(ByteCount offset_bytes, ByteCount bytes) const;
  /// Why the pages do not lie as they were wanted; empty if the system has granted that.
  [[nodiscard]] const std::string& misplaced() const { return misplaced_; }
  /// Bytes of pages that have not been touched yet.
  [[nodiscard]] ByteCount untouched_bytes() const;

 private:
  template <typename Visit>
  void each_chunk(Visit visit) const;
  void place(std::span<std::byte> chunk, Pages pages, const PagePlacement& placement);

  ByteCount bytes_;
  ByteCount chunk_bytes_;
  Mapping mapping_;
  std::string misplaced_;
  mutable std::mutex mutex_;
  std::vector<support::Descriptor> chunks_;  // guarded by mutex_ once created; empty: discarded
};

}  // namespace shardwire::memory
