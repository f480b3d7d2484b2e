// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "transport/transport.hpp"

namespace shardwire {

/// Words in memory that peers can map, one per publication: its generation while it is live, zero afterwards. Who has read
/// the publication's own memory without a lease finds out here whether it was live all the time, without asking.
/// Threads: loop thread only.
class GenerationWords {
 public:
  explicit GenerationWords(transport::Fabric& fabric) : fabric_(fabric) {}
  ~GenerationWords();
  GenerationWords(const GenerationWords&) = delete;
  GenerationWords& operator=(const GenerationWords&) = delete;

  /// Where a publication's word is, from now on `generation`. None when peers cannot map memory of ours, or when all words
  /// are in use. Requires: generation != 0.
  std::optional<ByteCount> set(std::uint64_t generation);
  /// The publication's memory is about to change, by this thread or by one that is told so after this call.
  void clear(ByteCount offset_bytes);
  /// Requires: set() has returned an offset.
  [[nodiscard]] const transport::Region& region() const { return *region_; }

 private:
  transport::Fabric& fabric_;
  std::unique_ptr<transport::Region> region_;
  bool opened_ = false;
  std::vector<ByteCount> free_;
};

/// One publication's word, in a peer's memory.
struct GenerationWord {
  std::shared_ptr<transport::RemoteRegion> region;  // owners: see Link::region; null: there is none
  ByteCount offset_bytes = 0;

  /// Whether the publication of that generation is live, and so was during all reads of its memory that came before. False
  /// says nothing. Requires: these reads happened before this call.
  [[nodiscard]] bool says_live(std::uint64_t generation) const;
};

/// Whether a mark can lie there: inside, and aligned.
constexpr bool is_generation_word(ByteCount offset_bytes, ByteCount region_bytes) {
  return offset_bytes % sizeof(std::uint64_t) == 0 && offset_bytes <= region_bytes &&
         region_bytes - offset_bytes >= sizeof(std::uint64_t);
}

}  // namespace shardwire
