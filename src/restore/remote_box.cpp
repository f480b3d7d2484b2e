// SPDX-License-Identifier: Apache-2.0
#include "restore/remote_box.hpp"

#include <fmt/core.h>

#include "memory/strided_copy.hpp"

namespace shardwire::restore {

const PlacedBox& box_around(const PlacedBoxes& boxes, const Box& box) {
  const PlacedBox* found = boxes.around(box);
  if (found == nullptr) throw Error(ErrorCode::internal, "the plan names a box that its holder does not hold");
  return *found;
}

const PlacedBox& remote_box(const wire::TensorHandle& handle, ByteCount mapped_bytes, const TensorLayout& held,
                            Rank layout_rank, const Box& box, BoxCache& cache) {
  const auto reject = [&](const std::string& why) {
    return Error(ErrorCode::transport_failed,
                 fmt::format("source rank {} gave a region of {} bytes for {} {} at offset {} with strides {}: {}",
                             to_int(layout_rank), mapped_bytes, to_string(held.spec.key), to_string(box),
                             handle.offset_bytes, to_string(handle.strides), why),
                 std::vector<Rank>{layout_rank});
  };
  try {
    const PlacedBox& placed = box_around(cache.of(held.layout, held.spec.shape, layout_rank, handle.strides), box);
    const memory::StridedCopy read(box, placed, memory::packed(box), item_size(held.spec.dtype));
    if (handle.offset_bytes <= mapped_bytes && read.source_span().end <= mapped_bytes - handle.offset_bytes) {
      return placed;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) throw;
    throw reject(error.what());
  }
  throw reject("it ends before the box does");
}

}  // namespace shardwire::restore
