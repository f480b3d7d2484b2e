// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "move/blocks.hpp"
#include "move/transfer.hpp"
#include "restore/callbacks.hpp"
#include "restore/context.hpp"
#include "restore/planning.hpp"
#include "restore/source.hpp"
#include "serve/published_digests.hpp"
#include "support/digest128.hpp"

namespace shardwire::restore {

/// Checks memory that is loaded from here, of sources that publish digests (PublishOptions::digest): digests the whole blocks
/// that hold what was copied, once all bytes have arrived, and compares them with those that were published. It needs nothing
/// of a source once its digests have come, so it holds for memory whose owner has died.
/// Threads: loop thread only.
class BlockChecks {
 public:
  /// Called for each block that differs; it may throw.
  using Differ = std::function<void(const Source& source, const wire::RequestedBox& block)>;

  /// Failures go to `failed`. `quieter` runs when it has become idle after stop(). `wanted`: is filled with the digests of all
  /// tensors that are read, whatever the method; null: they are not wanted. Ownership: borrows the context and sources.
  BlockChecks(const Context& context, const Sources& sources, Callbacks::Failed failed, std::function<void()> quieter,
              std::shared_ptr<BlockDigests> wanted);

  /// Asks for the digests of all tensors that these transfers load, or that are wanted.
  void start(std::span<const move::Transfer> transfers);
  /// Memory of this source is checked: it publishes no digests, or they have come.
  [[nodiscard]] bool can_check(std::size_t source) const;
  /// Checks what was loaded from sources whose digests have come, and waits for those of sources that are not lost. `done`
  /// runs at the end, now if there is nothing to check. Requires: start().
  void check(std::span<const move::Transfer> transfers, Differ differ, std::function<void()> done);
  /// A source was lost: nothing of it is awaited any more.
  void source_lost() { check_if_ready(); }
  /// Nothing is being read.
  [[nodiscard]] bool idle() const { return *running_ == 0; }
  /// Begins nothing more, and calls nobody but `quieter`.
  void stop();

 private:
  struct Tensor {
    move::Blocks blocks;
    std::vector<Digest128> digests;  // by block, as far as they have come
  };
  struct Known {
    std::map<std::uint32_t, Tensor> tensors;  // in the source's manifest
    int unanswered = 0;
  };
  void ask(std::size_t source);
  void note_wanted(std::uint32_t tensor, const Tensor& known);
  void check_if_ready();
  void check_now();

  const Context& context_;
  const Sources& sources_;
  Callbacks callbacks_;
  std::function<void()> quieter_;
  std::shared_ptr<BlockDigests> wanted_;  // null: none. Owners: see Request
  std::map<std::size_t, Known> known_;    // by source, those that publish digests
  std::span<const move::Transfer> transfers_;
  Differ differ_;
  std::function<void()> done_;                               // null: not asked, or begun
  std::shared_ptr<int> running_ = std::make_shared<int>(0);  // owners: this and batches under way
  bool stopped_ = false;
};

/// Error for parts that differ from their source after the move. `planning`: the plan of the parts. Requires: parts is
/// not empty.
Error differing_parts(std::span<const move::TransferPart> parts, const Planning& planning, const Manifest& manifest,
                      Rank target, Rank source);

/// Compares digests of parts in place here with digests that their sources take after all bytes have arrived. This
/// detects a source that changes its memory after a part was read.
/// Threads: loop thread only.
class DigestChecks {
 public:
  explicit DigestChecks(std::size_t sources) : by_source_(sources) {}

  void add(const move::TransferPart& part, const Digest128& digest);
  /// Receives parts that differ, and, if the source has found that out itself, the blocks that differ from what it published:
  /// the parts are then those of a request, some of which may be good. It may throw.
  using Differ =
      std::function<void(std::span<const move::TransferPart> parts, std::span<const wire::RequestedBox> blocks)>;
  /// Requests the digests of all sources. `differ` is called for differing parts. `done` runs when all have
  /// answered, now if there are none. Ownership: borrows the sources. Errors: those of a source go to its listener.
  /// Call it once.
  void ask(const Sources& sources, Differ differ, std::function<void()> done);
  /// This source answers no more: nothing of it is compared.
  void forget(std::size_t source);

 private:
  struct Check {
    std::vector<move::TransferPart> parts;
    std::vector<Digest128> digests;
    ByteCount bytes = 0;
  };
  void answered(std::size_t source);

  std::vector<std::vector<Check>> by_source_;
  std::vector<std::size_t> due_;  // answers by source, while they are awaited
  std::function<void()> done_;    // null: not asked, or done
};

}  // namespace shardwire::restore
