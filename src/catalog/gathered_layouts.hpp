// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "shardwire/catalog.hpp"
#include "shardwire/plan.hpp"

namespace shardwire {

/// The layouts of a catalog, for decode_layouts(); nothing for a catalog without tensors.
Bytes encode_layouts(const Catalog& catalog);
/// One side of a plan, from what encode_layouts() returned on each member of a job.
/// Errors: throws Error{layout_mismatch} if two members have one layout rank, or layouts over different numbers of
///         ranks; Error{transport_failed} that names the field, as the readers of wire/messages.hpp do.
JobLayout decode_layouts(std::span<const Bytes> members);

}  // namespace shardwire
