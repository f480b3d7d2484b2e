// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "move/packed.hpp"
#include "move/staging.hpp"
#include "move/way.hpp"

namespace shardwire::move {

struct EngineOptions {
  ByteCount staging_bytes = 0;
  ByteCount ingress_bytes_per_second = 0;
  std::uint64_t first_request = 0;  ///< number of the first packed request; unguessable, so that nobody else can answer
};

/// Drives the ways of one restore.
/// Threads: the session's thread only; copies run on the copier's.
class Engine {
 public:
  struct Hooks {
    PackedWay::Send send_pack;
    std::function<void()> changed;
    std::function<void(std::exception_ptr)> failed;
  };
  Engine(memory::Copier& copier, EngineOptions options, Hooks hooks);
  /// Requires: idle(), or the copier has been drained.
  ~Engine();

  /// See PackedWay::limit.
  void limit_pack(std::uint32_t peer, ByteCount bytes) { packed_->limit(peer, bytes); }
  void add(Transfer transfer);
  /// Posts all that may be posted now. Returns when to call again if only the rate stands in the way.
  std::optional<Pacer::Clock::time_point> pump();
  bool payload(std::uint64_t request, transport::Incoming& incoming) { return packed_->payload(request, incoming); }
  [[nodiscard]] std::optional<std::uint32_t> peer_of(std::uint64_t request) const { return packed_->peer_of(request); }

  [[nodiscard]] bool complete() const { return shared_->tally.done_bytes() == shared_->tally.expected_bytes(); }
  [[nodiscard]] const Tally& tally() const { return shared_->tally; }
  [[nodiscard]] ByteCount staging_peak_bytes() const { return pool_.peak_bytes(); }
  /// Posts nothing more; what is in flight ends or is discarded.
  void stop() { shared_->stopped = true; }
  /// No copy into the destination is running or can begin.
  [[nodiscard]] bool idle() const { return in_place_->idle() && packed_->idle(); }

 private:
  StagingPool pool_;
  std::shared_ptr<Shared> shared_;  // owners: this engine, its ways and completions in flight
  std::unique_ptr<Way> in_place_;
  std::unique_ptr<PackedWay> packed_;
};

}  // namespace shardwire::move
