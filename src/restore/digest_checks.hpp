// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "memory/digest.hpp"
#include "move/transfer.hpp"
#include "restore/planning.hpp"
#include "restore/source.hpp"

namespace shardwire::restore {

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
  void ask(std::span<const std::unique_ptr<Source>> sources, Differ differ, std::function<void()> done);
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
