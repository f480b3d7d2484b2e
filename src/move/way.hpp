// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "memory/copier.hpp"
#include "memory/digest.hpp"
#include "move/pacer.hpp"
#include "move/sizing.hpp"
#include "move/tally.hpp"
#include "transport/transport.hpp"

namespace shardwire::move {

/// Part of a transfer: a box, and what it is a part of, which lives as long as Shared.
struct TransferPart {
  const Transfer* transfer = nullptr;
  Box box;

  [[nodiscard]] ByteCount bytes() const { return bytes_of_box(box, transfer->item_bytes); }
};

/// What may be asked of one peer.
struct PeerLimits {
  ByteCount max_pack_bytes = 0;     ///< of one packed request
  std::uint64_t first_request = 0;  ///< requests are numbered from here, so that no other peer can answer them
  std::size_t max_ranges = 1;       ///< of one list of reads
  ByteCount max_read_bytes = 0;     ///< of one list of reads
  int max_reads = 0;                ///< lists under way
};

/// What the ways of one restore share.
struct Shared {
  memory::Copier& copier;
  Pacer pacer;  ///< remote bytes only
  Tally tally;
  std::shared_ptr<const std::vector<Transfer>> transfers{};  // owners: see RestoreRun
  Depths depths{};                                           ///< of requests to one peer
  bool digests = false;  ///< every part is digested at the destination, and compared with its source

  std::function<void()> changed;                   ///< something arrived or a slot came free
  std::function<void(std::exception_ptr)> failed;  ///< the restore cannot go on
  /// Digest of what is in place now, of a part whose source has not sent its own along.
  std::function<void(const TransferPart&, const memory::Digest128&)> digested;
  /// The source's digest of this part is another one.
  std::function<void(const TransferPart&)> differs;
  std::function<transport::Endpoint&(std::uint32_t peer)> endpoint;
  /// Asks a peer for parts: packed into one message, or each as a message of its own.
  std::function<void(std::uint32_t peer, std::uint64_t request, std::vector<PackPart> parts, bool each)> ask;

  std::vector<PeerLimits> limits{};  ///< by peer; first_request counts on
  std::uint64_t next_request(std::uint32_t peer) { return limits.at(peer).first_request++; }
  double digest_seconds = 0;  ///< that workers spent on digests
  bool stopped = false;

  /// Runs what may throw inside a completion, where nobody would catch it. False when it threw: the restore has failed.
  template <typename Body>
  bool guarded(Body body) {
    try {
      body();
      return true;
    } catch (const std::exception&) {
      failed(std::current_exception());
      return false;
    }
  }

  /// A large restore would only push everything else out of the caches; a small one is likely to be used at once.
  [[nodiscard]] memory::Stores stores() const {
    constexpr ByteCount min_streamed_restore = 16u << 20;
    return tally.expected_bytes() >= min_streamed_restore ? memory::Stores::streaming : memory::Stores::cached;
  }
};

/// One way of moving bytes: takes transfers, posts them part by part, never blocks.
class WayEngine {
 public:
  virtual ~WayEngine() = default;
  virtual void add(const Transfer& transfer) = 0;
  /// Posts one part or a few; false when nothing can be posted now (nothing left, no slot, rate).
  virtual bool post(Pacer::Clock::time_point now) = 0;
  /// True when nothing of this way will touch the destination any more unless something further is posted.
  [[nodiscard]] virtual bool idle() const = 0;
  /// Whether the fabric may be writing into the destination what comes from this peer.
  [[nodiscard]] virtual bool writes_from(std::uint32_t) const { return false; }
};

/// local or mapped: source bytes can be loaded in place.
std::unique_ptr<WayEngine> make_in_place(std::shared_ptr<Shared> shared, Way way);
class StagingPool;
/// read and over_read: one-sided reads into place, or into staging where they cross gaps.
std::unique_ptr<WayEngine> make_reads(std::shared_ptr<Shared> shared, StagingPool& pool);

}  // namespace shardwire::move
