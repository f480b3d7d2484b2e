// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "memory/strided_copy.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/types.hpp"
#include "support/digest128.hpp"

namespace shardwire::memory {

/// Digest of the elements of `box` (global, inside placed.box) taken row-major, so that both ends of a move get the
/// same value whatever their local layouts. `base` points at local element 0. Errors: as StridedCopy.
Digest128 digest_box(const Box& box, const PlacedBox& placed, const std::byte* base, ByteCount item_bytes);

/// The same for the bytes that `copy` reads, regardless of merged or omitted dims: its runs are in row-major order of
/// its box.
Digest128 digest_runs(const StridedCopy& copy, const std::byte* source);

/// One digest of several, in order.
Digest128 digest_of(std::span<const Digest128> digests);

/// Executes `copy` and returns the digest that digest_box() would return for the target afterwards. With cached stores,
/// the target is read again soon after it was written. With streaming stores, the stored bytes themselves are digested:
/// the source is read once, so concurrent changes of it cannot make target and digest differ. Adds the digest's
/// duration to `digest_seconds`.
/// Order: runs of a StridedCopy are in row-major order of its box, regardless of merged or omitted dims. Requires and
///        errors: as StridedCopy::run().
Digest128 copy_and_digest(const StridedCopy& copy, const std::byte* source, std::byte* target, Stores stores,
                          double& digest_seconds);
Digest128 copy_and_digest(const Box& box, const PlacedBox& source, const PlacedBox& target, ByteCount item_bytes,
                          const std::byte* from, std::byte* to, Stores stores, double& digest_seconds);

}  // namespace shardwire::memory
