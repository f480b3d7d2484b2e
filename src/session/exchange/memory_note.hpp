// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <set>

#include "geometry/strides.hpp"
#include "shardwire/catalog.hpp"
#include "wire/exchange_note.hpp"

namespace shardwire {

/// What one member's word at the first barrier of an exchange says of its memory.
struct MemoryNote {
  wire::ExchangeNote note{};
  std::set<const Catalog::Entry*> aliased{};  ///< wanted tensors that lie on held ones here
};

/// Which parts of what is wanted lie on which parts of what is held, here. `slices_of`: into how many a tensor is cut.
MemoryNote note_of_memory(const Catalog& held, const Catalog& wanted,
                          const std::function<std::uint32_t(const TensorKey& key)>& slices_of, BoxCache& boxes);

}  // namespace shardwire
