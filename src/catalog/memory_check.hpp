// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "catalog/tensor_places.hpp"
#include "shardwire/catalog.hpp"
#include "shardwire/memory.hpp"
#include "transport/memory.hpp"

namespace shardwire {

/// Check that every byte addressed by the catalog's layouts is mapped and readable; for a destination also writable,
/// and not const. Device memory was checked by places_of(), which returned `places`.
/// Errors: throw Error{invalid_argument} naming the first tensor that fails.
void require_readable(const Catalog& held, const TensorPlaces& places);
void require_writable(const Catalog& wanted, const TensorPlaces& places);

/// The memory to register for Session::register_memory(). Errors: as there.
struct Registrable {
  transport::Memory memory;
  TensorPlace place{};  ///< for device memory
};
Registrable registrable(const View& view);

}  // namespace shardwire
