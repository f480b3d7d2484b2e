// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "memory/digest128.hpp"
#include "memory/strided_copy.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory {

/// Digest of the elements of `box` (global, inside placed.box) taken row-major, so that both ends of a move get the
/// same value however the elements lie in their memory. `base` points at local element 0. Errors: as StridedCopy.
Digest128 digest_box(const Box& box, const PlacedBox& placed, const std::byte* base, ByteCount item_bytes,
                     DigestKind kind = DigestKind::flat);

/// The same of what `copy` reads, whatever dims it merged or left out: its runs come in row-major order of its box.
Digest128 digest_runs(const StridedCopy& copy, const std::byte* source, DigestKind kind = DigestKind::flat);

/// One digest for several, in their order.
Digest128 digest_of(std::span<const Digest128> digests);

/// Copies all of `copy` and gives what digest_box() would give of the box in the target afterwards. Through the caches, the
/// target is read again soon after it was written. Past them, the very bytes that were stored are digested: the source is
/// read once, and what changes there meanwhile makes no difference between target and digest. Adds what the digest took
/// to `digest_seconds`.
/// Order: runs of a StridedCopy come in row-major order of its box, whatever dims it merged or left out.
/// Requires and errors: as StridedCopy::run().
Digest128 copy_and_digest(const StridedCopy& copy, const std::byte* source, std::byte* target, Stores stores,
                          double& digest_seconds, DigestKind kind = DigestKind::flat);
Digest128 copy_and_digest(const Box& box, const PlacedBox& source, const PlacedBox& target, ByteCount item_bytes,
                          const std::byte* from, std::byte* to, Stores stores, double& digest_seconds,
                          DigestKind kind = DigestKind::flat);

}  // namespace shardwire::memory
