// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/blocks.hpp"
#include "move/transfer.hpp"
#include "restore/callbacks.hpp"
#include "restore/planning.hpp"
#include "restore/source.hpp"
#include "serve/published_digests.hpp"
#include "support/digest128.hpp"

namespace shardwire::restore {

/// Compares what has arrived with its sources, once all of it is in place:
///
///   * Memory that is loaded from here, of sources that publish digests (PublishOptions::digest): digests the whole blocks that
///     hold what was copied, and compares them with those that were published. This needs nothing of a source once its digests
///     have come, so it holds for memory whose owner has died.
///   * Parts that were digested as they arrived: compares them with digests that their sources take after all bytes have
///     arrived. This detects a source that changes its memory after a part was read.
///
/// Nothing of a lost source is awaited.
/// Threads: loop thread only.
class ContentChecks {
 public:
  struct Reports {
    /// A block that was loaded is not what its source has published. It may throw.
    std::function<void(const Source& source, const wire::RequestedBox& block)> block_differs;
    /// Parts that differ, and, if the source has found that out itself, the blocks that differ from what it published: the
    /// parts are then those of a request, some of which may be good. It may throw.
    std::function<void(std::span<const move::TransferPart> parts, std::span<const wire::RequestedBox> blocks)>
        parts_differ;
    Callbacks::Failed failed;
    std::function<void()> quieter;  ///< after stop(): it has become idle
  };

  /// `wanted`: is filled with the digests of all tensors that are read, whatever the method; null: they are not wanted.
  /// Ownership: borrows the copies and sources.
  ContentChecks(memory::CopyQueue& copies, const Sources& sources, Reports reports,
                std::shared_ptr<BlockDigests> wanted);

  /// Asks for the digests of all tensors that these transfers load, or that are wanted. Ownership: borrows the transfers.
  void start(std::span<const move::Transfer> transfers);
  /// The digest of a part in place.
  void add(const move::TransferPart& part, const Digest128& digest);
  /// Compares first what was loaded, then what was added. `done` runs at the end, now if there is nothing to compare.
  /// Errors: those of a source go to its listener. Call it once.
  void compare(std::function<void()> done);
  /// Memory of this source is checked: it publishes no digests, or they have come.
  [[nodiscard]] bool can_check(std::size_t source) const { return of_sources_[source].unanswered == 0; }
  void source_lost() { go_on(); }
  /// Nothing is being read.
  [[nodiscard]] bool idle() const { return *running_ == 0; }
  /// Processor time on blocks that were loaded.
  [[nodiscard]] double digest_seconds() const { return digest_seconds_; }
  /// Begins nothing more, and calls nobody but `quieter`.
  void stop() { stopped_ = true; }

 private:
  struct Tensor {
    move::Blocks blocks;
    std::vector<Digest128> digests;  // by block, as far as they have come
  };
  /// Parts that are compared by one request.
  struct Check {
    std::vector<move::TransferPart> parts;
    std::vector<Digest128> digests;
    ByteCount bytes = 0;
  };
  struct OfSource {
    std::map<std::uint32_t, Tensor> tensors;  // in its manifest, those that it publishes digests of
    int unanswered = 0;                       // requests for these
    std::vector<Check> checks;                // not requested yet
    int due = 0;                              // requested
  };
  /// The answers that the next step needs.
  enum class Awaited : std::uint8_t { nothing, published, taken };

  void ask_for_published(std::size_t source);
  void note_wanted(std::uint32_t tensor, const Tensor& known);
  void go_on();
  void check_blocks();
  void ask_for_taken();
  void ask_for_taken(std::size_t source, Check check);

  memory::CopyQueue& copies_;
  const Sources& sources_;
  Reports reports_;
  Callbacks callbacks_;
  std::shared_ptr<BlockDigests> wanted_;  // null: none. Owners: see Request
  std::vector<OfSource> of_sources_;      // by source
  std::span<const move::Transfer> transfers_;
  Awaited awaited_ = Awaited::nothing;
  std::function<void()> done_;
  std::shared_ptr<int> running_ = std::make_shared<int>(0);  // owners: this and batches under way
  double digest_seconds_ = 0;
  bool stopped_ = false;
};

/// Error for parts that differ from their source after the move. `planning`: the plan of the parts. Requires: parts is
/// not empty.
Error differing_parts(std::span<const move::TransferPart> parts, const Planning& planning, const Manifest& manifest,
                      Rank target, Rank source);

}  // namespace shardwire::restore
