// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "paths/fabric_channel.hpp"
#include "serve/memory_table.hpp"
#include "transport/transport.hpp"

namespace shardwire {

/// Words in memory that peers can map or read, one per publication: its generation while it is live, zero afterwards. A
/// reader of the publication's memory checks the word to learn, without a request, whether the publication was live all
/// the time.
/// Threads: loop thread only.
class GenerationWords {
 public:
  using Allocate = std::function<std::shared_ptr<detail::RegisteredMemory>(ByteCount)>;
  explicit GenerationWords(Allocate allocate) : allocate_(std::move(allocate)) {}
  ~GenerationWords();
  GenerationWords(const GenerationWords&) = delete;
  GenerationWords& operator=(const GenerationWords&) = delete;

  /// Sets a word to `generation` and returns its place. Empty if there is no memory for words, or all are in use.
  /// Requires: generation != 0.
  std::optional<ByteCount> set(std::uint64_t generation);
  /// Call it before the publication's memory changes, on this thread or on another that is notified after this call.
  void clear(ByteCount offset_bytes);
  /// Requires: set() has returned an offset.
  [[nodiscard]] const detail::RegisteredMemory& memory() const { return *memory_; }

 private:
  Allocate allocate_;
  std::shared_ptr<detail::RegisteredMemory> memory_;  // no other owner
  bool opened_ = false;
  std::vector<ByteCount> free_;
};

/// One publication's word, in a peer's memory.
struct GenerationWord {
  std::shared_ptr<transport::RemoteRegion> region;  // owners: see Link::region; null: no word
  ByteCount offset_bytes = 0;
  std::shared_ptr<FabricChannel> channel{};  // that imported it; owners: see Link::channel()

  [[nodiscard]] bool is_mapped() const { return region && !region->mapped().empty(); }
  /// True if the publication of that generation is live, and therefore was live during all earlier reads of its memory.
  /// False proves nothing, nor does an unmapped word. Requires: these reads happened before this call.
  [[nodiscard]] bool says_live(std::uint64_t generation) const;
};

/// Whether the offset is valid for a word: inside the region, and aligned.
constexpr bool is_generation_word(ByteCount offset_bytes, ByteCount region_bytes) {
  return offset_bytes % sizeof(std::uint64_t) == 0 && offset_bytes <= region_bytes &&
         region_bytes - offset_bytes >= sizeof(std::uint64_t);
}

}  // namespace shardwire
