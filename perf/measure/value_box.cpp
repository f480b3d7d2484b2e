// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/value_box.hpp"

#include <cstdint>

#include "shardwire/types.hpp"

namespace shardwire::perf {

memory::ValueBox value_box(const ElementValues& values, const PlacedBox& placed, std::byte* local, bool complement) {
  const ByteCount item = item_size(values.spec().dtype);
  const Extents strides = row_major_strides(values.spec().shape);
  memory::ValueBox box;
  box.first = local + static_cast<ByteCount>(placed.local_offset) * item;
  box.elements = static_cast<std::uint64_t>(placed.box.volume());
  box.seed = values.seed();
  box.flip = complement ? ~std::uint64_t{0} : 0;
  box.item_bytes = static_cast<std::uint32_t>(item);
  box.dims = static_cast<std::uint32_t>(placed.box.dims());
  for (std::size_t dim = 0; dim < placed.box.dims(); ++dim) {
    box.index += static_cast<std::uint64_t>(placed.box.offset[dim] * strides[dim]);
    box.dim[dim] = {static_cast<std::uint64_t>(placed.box.size[dim]), static_cast<std::uint64_t>(strides[dim]),
                    static_cast<ByteCount>(placed.local_strides[dim]) * item};
  }
  return box;
}

}  // namespace shardwire::perf
