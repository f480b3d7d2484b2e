// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "session/tensor_places.hpp"
#include "shardwire/catalog.hpp"
#include "shardwire/memory.hpp"
#include "transport/memory.hpp"

namespace shardwire {

/// Make sure that every byte that the catalog's layouts put somewhere is there: mapped, and readable; for a destination
/// writable too, and no view of const memory. Memory of devices was looked at by places_of(), whose answer `places` is.
/// Errors: throw Error{invalid_argument} naming the first tensor whose memory is not.
void require_readable(const Catalog& held, const TensorPlaces& places);
void require_writable(const Catalog& wanted, const TensorPlaces& places);

/// What Session::register_memory() is asked to register. Errors: as there.
struct Registrable {
  transport::Memory memory;
  TensorPlace place{};  ///< of memory of a device
};
Registrable registrable(const View& view);

}  // namespace shardwire
