// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/catalog.hpp"
#include "shardwire/memory.hpp"
#include "transport/memory.hpp"

namespace shardwire {

/// Make sure that every byte that the catalog's layouts put somewhere is there: mapped, and readable; for a destination
/// writable too, and no view of const memory. Memory of a device, which the processor cannot reach, is refused as well.
/// Errors: throw Error{invalid_argument} naming the first tensor whose memory is not.
void require_readable(const Catalog& held);
void require_writable(const Catalog& wanted);

/// What Session::register_memory() is asked to register. Errors: as there.
transport::Memory registrable(const View& view);

}  // namespace shardwire
