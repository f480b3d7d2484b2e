// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "session/control/fabric_channel.hpp"
#include "session/source/memory_table.hpp"
#include "transport/transport.hpp"

namespace shardwire {

/// Words in memory that peers can map or read, one per publication: its generation while it is live, zero afterwards. Who has
/// read the publication's own memory finds out here whether it was live all the time, without asking.
/// Threads: loop thread only.
class GenerationWords {
 public:
  using Allocate = std::function<std::shared_ptr<detail::RegisteredMemory>(ByteCount)>;
  explicit GenerationWords(Allocate allocate) : allocate_(std::move(allocate)) {}
  ~GenerationWords();
  GenerationWords(const GenerationWords&) = delete;
  GenerationWords& operator=(const GenerationWords&) = delete;

  /// Where a publication's word is, from now on `generation`. None when there is no memory for
  /// words, or when all are in use. Requires: generation != 0.
  std::optional<ByteCount> set(std::uint64_t generation);
  /// The publication's memory is about to change, by this thread or by one that is told so after this call.
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
  std::shared_ptr<transport::RemoteRegion> region;  // owners: see Link::region; null: there is none
  ByteCount offset_bytes = 0;
  std::shared_ptr<FabricChannel> channel{};  // that has imported it; owners: see Link::channel()

  [[nodiscard]] bool is_mapped() const { return region && !region->mapped().empty(); }
  /// Whether the publication of that generation is live, and so was during all reads of its memory that came before. False
  /// says nothing, and so does a word that is not mapped. Requires: these reads happened before this call.
  [[nodiscard]] bool says_live(std::uint64_t generation) const;
};

/// Whether a word can lie there: inside, and aligned.
constexpr bool is_generation_word(ByteCount offset_bytes, ByteCount region_bytes) {
  return offset_bytes % sizeof(std::uint64_t) == 0 && offset_bytes <= region_bytes &&
         region_bytes - offset_bytes >= sizeof(std::uint64_t);
}

}  // namespace shardwire
