// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <set>

#include "geometry/strides.hpp"
#include "shardwire/catalog.hpp"
#include "wire/exchange_note.hpp"

namespace shardwire {

/// A member's memory as described at the first barrier of an exchange.
struct MemoryNote {
  wire::ExchangeNote note{};
  std::set<const Catalog::Entry*> aliased{};  ///< wanted tensors that overlap held ones on this member
};

/// Finds the wanted parts that overlap held parts on this member. `slices_of`: number of slices of a tensor.
MemoryNote note_of_memory(const Catalog& held, const Catalog& wanted,
                          const std::function<std::uint32_t(const TensorKey& key)>& slices_of, BoxCache& boxes);

}  // namespace shardwire
