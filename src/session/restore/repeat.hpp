// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "session/restore/cached_restore.hpp"

namespace shardwire {

/// What a restore may leave out because an earlier one of the same catalog has done it: planning, binding, and, where it
/// reads optimistically, waiting for its leases or even asking for them.
///
/// Why mapped memory may be read before a lease is there: a generation is published once and never comes back, so one that
/// is live when the lease is granted was live all the time before, and the lease covers the rest. Without any lease, what
/// was read counts if the generation is still live afterwards.
/// Threads: loop thread only.
class Repetition {
 public:
  /// `cached`: of the earlier restore; null when there was none.
  explicit Repetition(std::unique_ptr<CachedRestore> cached) : cached_(std::move(cached)) {}

  /// Null when nothing of the earlier restore is of use.
  [[nodiscard]] CachedRestore* cached() const { return cached_.get(); }
  void forget() { cached_.reset(); }

  /// Decides about optimistic reads. Requires: cached(); `peers` are those of the earlier restore, with today's records.
  void choose(const RestoreOptions& options, const Catalog& wanted, const std::vector<SourcePeer>& peers);
  /// Bytes are read before the sources have answered.
  [[nodiscard]] bool optimistic() const { return optimistic_; }
  /// And without asking for leases.
  [[nodiscard]] bool unleased() const { return unleased_; }

  void lease_requested() { ++awaited_leases_; }
  void lease_granted() { --awaited_leases_; }
  [[nodiscard]] bool awaits_leases() const { return awaited_leases_ > 0; }

  /// A source was bound that has published anew since.
  void bound_anew() { bound_anew_ = true; }
  /// Whether the transfers of the earlier restore are those of this one. Requires: every source is bound.
  [[nodiscard]] bool same_transfers(const RestoreOptions& options, const Catalog& wanted) const;

 private:
  std::unique_ptr<CachedRestore> cached_;
  bool optimistic_ = false;
  bool unleased_ = false;
  std::size_t awaited_leases_ = 0;  // while bytes are read
  bool bound_anew_ = false;
};

}  // namespace shardwire
