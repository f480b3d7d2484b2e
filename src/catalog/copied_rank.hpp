// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "shardwire/catalog.hpp"
#include "shardwire/plan.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// Places in one buffer for all that a rank holds by a manifest, apart from one-element tensors, which travel with the
/// values.
struct CopiedRank {
  std::vector<wire::KeptTensor> tensors;  ///< in the order of the manifest
  ByteCount bytes = 0;                    ///< of the buffer
};
/// Tensors whose places leave room for others (parts of a flat parameter, of a fused weight) share a stretch of the buffer
/// where their parts do not overlap. Pure.
CopiedRank places_for_copy(const Manifest& manifest, Rank rank);

/// The catalog that a restore of that rank fills. Borrows the buffer, of which `to` is the begin.
Catalog catalog_of_copy(const Manifest& manifest, Rank rank, const CopiedRank& places, std::byte* to);

}  // namespace shardwire
