// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "catalog/tensor_places.hpp"
#include "move/staging.hpp"
#include "restore/binding.hpp"
#include "restore/planning.hpp"
#include "restore/source.hpp"
#include "restore/target.hpp"
#include "restore/transfers.hpp"

namespace shardwire::restore {

/// An attempt that has succeeded, kept for the next restore of the same catalog: plan, bindings, transfers and staging.
/// Keeps no publication of this process and no lease alive.
struct ParkedAttempt {
  std::string from;
  Wanted wanted;
  TensorPlaces places;  // of wanted
  Replicas replicas = Replicas::spread;
  std::optional<Method> method{};        // the method requested
  std::shared_ptr<Planning> planning{};  // no other owner
  std::vector<Binding> bindings{};       // by index of the source
  ChosenTransfers chosen{};
  std::shared_ptr<move::StagingPool> staging{};
};

/// Whether both catalogs want the same parts of the same tensors, in whatever memory.
bool alike(const Catalog& a, const Catalog& b);
/// Whether the memory is the same too. Requires: alike().
bool same_memory(const Catalog& a, const Catalog& b);
/// Whether a plan made from `a` holds for `b`: the same processes publish the same layouts.
bool same_sources(const std::vector<wire::PublicationRecord>& a, const std::vector<wire::PublicationRecord>& b);

/// The latest parked attempts: what makes repeated restores fast.
class RestoreCache {
 public:
  /// Takes the state left by an earlier restore of such a catalog, for one user at a time; null if there is none.
  std::unique_ptr<ParkedAttempt> take(const std::string& from, const Catalog& wanted, Replicas replicas);
  void keep(std::unique_ptr<ParkedAttempt> parked);
  /// Drops states that use a lost source.
  void forget(const SourceLink* link);
  /// Releases the memory that this publication was read through.
  void unbind(const SourceLink* link, const std::string& publication);
  void clear() { parked_.clear(); }

 private:
  std::vector<std::unique_ptr<ParkedAttempt>> parked_;  // latest last
};

// Work that a restore can skip because an earlier one of the same catalog has done it: planning, binding, and, for
// optimistic reads, waiting for leases or even requesting them.
// Mapped memory may be read before the lease arrives, because a generation is published once and never returns. If it
// is live when the lease is granted, it was live all the time before, and the lease covers the rest. Without a lease,
// the bytes count if the generation is still live after the read.

/// How the sources of an earlier restore are leased. Pure. `bindings`: those of the earlier restore, with current
/// records.
[[nodiscard]] Source::Leasing leasing_of(const ParkedAttempt& earlier, std::span<const Binding* const> bindings,
                                         Verify verify, std::optional<Method> method, const Catalog& wanted);

/// Whether the transfers of an earlier restore apply to this one, unless a source was bound anew.
[[nodiscard]] bool keeps_transfers(const ParkedAttempt& earlier, std::optional<Method> method, const Catalog& wanted);

}  // namespace shardwire::restore
