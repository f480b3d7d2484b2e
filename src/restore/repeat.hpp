// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "restore/cached_restore.hpp"
#include "restore/source.hpp"

// Work that a restore can skip because an earlier one of the same catalog has done it: planning, binding, and, for
// optimistic reads, waiting for leases or even requesting them.
// Mapped memory may be read before the lease arrives, because a generation is published once and never returns. If it
// is live when the lease is granted, it was live all the time before, and the lease covers the rest. Without a lease,
// the bytes count if the generation is still live after the read.
namespace shardwire::restore {

/// How the sources of an earlier restore are leased. Pure. `bindings`: those of the earlier restore, with current
/// records.
[[nodiscard]] Source::Leasing leasing_of(const CachedRestore& earlier, std::span<const Binding* const> bindings,
                                         Verify verify, std::optional<Method> method, const Catalog& wanted);

/// Whether the transfers of an earlier restore apply to this one, unless a source was bound anew.
[[nodiscard]] bool keeps_transfers(const CachedRestore& earlier, std::optional<Method> method, const Catalog& wanted);

}  // namespace shardwire::restore
